"""vLLM: a platform plug-in whose workers communicate by gpushmem, and a connector for KV caches.

`VLLM_PLUGINS=gpushmem` puts it in; vLLM finds it through its entry points (docs/integrations.md).
"""

from __future__ import annotations

import os

__all__ = ["platform", "register"]

HERE = "gpushmem.integrations.vllm"
CONNECTOR = "GpushmemConnector"


def platform() -> str | None:
    """Return the class of the platform for vLLM, or None if `VLLM_PLUGINS` does not name gpushmem.

    vLLM calls the plug-ins of all installed packages; only who asks for this one gets it.
    """
    if "gpushmem" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return None
    return f"{HERE}.platform.GpushmemPlatform"


def register() -> None:
    """Make the connector known to vLLM, in each of its processes; once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import (  # noqa: PLC0415
        KVConnectorFactory,
    )

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, f"{HERE}.kv_connector", CONNECTOR)
