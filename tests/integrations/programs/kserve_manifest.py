"""Read a manifest by KServe's and Kubernetes' own classes; what they do not have is an error."""

import re
import sys

import kubernetes.client.models
import pytest
import yaml
from kserve import models

PLAIN = {"str": str, "int": int, "bool": bool}


def class_of(name):
    return getattr(models, name, None) or getattr(kubernetes.client.models, name, None)


def made(value, kind, where):
    """The object of a class that a value describes: its constructor checks what must be there."""
    listed = re.fullmatch(r"list\[(.*)\]", kind)
    if listed:
        assert isinstance(value, list), f"{where} is no {kind}: {value!r}"
        return [made(each, listed[1], f"{where}[{k}]") for k, each in enumerate(value)]
    cls = class_of(kind)
    if cls is None:
        assert isinstance(value, PLAIN.get(kind, object)), f"{where} is no {kind}: {value!r}"
        return value
    names = {said: name for name, said in cls.attribute_map.items()}
    assert value.keys() <= names.keys(), f"{where}: {kind} has no {value.keys() - names.keys()}"
    fields = {
        names[said]: made(each, cls.openapi_types[names[said]], f"{where}.{said}")
        for said, each in value.items()
    }
    return cls(**fields)


with open(sys.argv[1]) as file:
    runtime = made(yaml.safe_load(file), "V1alpha1ServingRuntime", "manifest")
(container,) = runtime.spec.containers
assert (runtime.api_version, runtime.kind) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
assert container.name == "kserve-container"  # where KServe puts the model
assert {each.name: each.value for each in container.env}["VLLM_PLUGINS"] == "gpushmem"
assert "--tensor-parallel-size=2" in container.args
assert {each.name for each in container.volume_mounts} == {
    each.name for each in runtime.spec.volumes
}
for bad, what in (
    ({"kind": "ServingRuntime", "spec": {"container": []}}, "has no {'container'}"),
    ({"spec": {"containers": [{"image": "x"}]}}, "Field required"),
    ({"spec": {"containers": [{"name": "x", "args": "--port"}]}}, "valid list"),
):
    with pytest.raises((AssertionError, ValueError), match=re.escape(what)):
        made(bad, "V1alpha1ServingRuntime", "manifest")
print("ok")
