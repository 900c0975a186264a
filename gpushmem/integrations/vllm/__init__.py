"""vLLM: a platform plug-in whose workers communicate by gpushmem, and a connector for KV caches.

`VLLM_PLUGINS=gpushmem` puts it in; vLLM finds it through its entry points (docs/integrations.md).
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["platform", "register"]

HERE = "gpushmem.integrations.vllm"
CONNECTOR = "GpushmemConnector"
log = logging.getLogger("vllm.gpushmem")


def platform() -> str | None:
    """Return the class of the platform for vLLM, or None if `VLLM_PLUGINS` does not name gpushmem.

    vLLM calls the plug-ins of all installed packages; only who asks for this one gets it. None on
    GPUs, too: vLLM's own platform stays.
    """
    if "gpushmem" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return None
    from vllm.platforms import cpu_platform_plugin  # noqa: PLC0415

    if cpu_platform_plugin() is None:
        log.warning("gpushmem carries collectives of vLLM on CPUs alone: these stay vLLM's own")
        return None
    return f"{HERE}.platform.GpushmemPlatform"


def register() -> None:
    """Make the connector known to vLLM, in each of its processes; once.

    vLLM calls this wherever gpushmem is installed, so a version that has no such connectors is left
    in peace.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (  # noqa: PLC0415
            KVConnectorFactory,
        )
    except ImportError as error:
        log.debug("GpushmemConnector is not for this version of vLLM: %s", error)
        return

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, f"{HERE}.kv_connector", CONNECTOR)
    if "dynamo.vllm" in sys.modules:  # a worker of Dynamo's: its requests go as for NIXL
        from dynamo.vllm import kv_connector_protocols as dynamo  # noqa: PLC0415

        dynamo.KV_CONNECTOR_PROTOCOLS[CONNECTOR] = dynamo.NixlConnectorProtocol
