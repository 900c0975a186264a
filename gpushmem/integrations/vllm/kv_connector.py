"""A connector of vLLM's: prefill in one engine, decode in another; pages travel by `KVTransfer`.

    prefill engine  --kv-transfer-config '{"kv_connector": "GpushmemConnector",
        "kv_role": "kv_producer", "kv_connector_extra_config": {"address": "127.0.0.1:29600"}}'
    decode engine   the same, with "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"

A request goes to both at once, with the same name in its `kv_transfer_params`: {"transfer": name},
and `max_tokens` 1 where it is prefilled. The engine that decodes has room for its pages, and does
other work until they are there; the one that prefills sends them layer by layer while it computes,
or, if the other has not asked yet, as soon as it does. Or first to the one that prefills, with
{"do_remote_decode": true}, as for `NixlConnector`, and then, with the `kv_transfer_params` of its
answer, to the other.

Here is what both of vLLM's processes see: the scheduler, which says what to send and to receive,
and the workers, which do (`pages.Transfers`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.request import RequestStatus

from gpushmem.errors import ArgumentError
from gpushmem.integrations.vllm.pages import Received, Sent, Transfers

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GpushmemConnector"]

PAUSE = 2e-4  # seconds
DONE = RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED


@dataclass
class Step(KVConnectorMetadata):  # type: ignore[misc]
    """What workers begin in a step."""

    sent: list[Sent] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)  # requests that others wait for


class Prefilled:
    """A request that is being prefilled: its pages, which grow with its chunks."""

    def __init__(self, transfer: str, tokens: int) -> None:
        self.transfer, self.tokens = transfer, tokens
        self.blocks: list[int] = []
        self.is_whole = False  # it has been given to the workers


class GpushmemConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Pages of vLLM's KV caches, from engines that prefill to engines that decode.

    `kv_connector_extra_config`: "address", "host:port" of the first worker of the first engine that
    prefills, where all meet; "prefill" and "decode", how many engines do (1 and 1); "instance",
    which of its kind this one is (0); "requests", how many one worker receives at a time (16);
    "pages", room for those under way (two requests of the maximal length); "timeout", seconds that
    an engine waits for the other one's part of a request (120), and at its start for the others.

    All engines have the same model, block size, dtype and number of tensor-parallel workers.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._is_prefill = self._kv_transfer_config.kv_role == "kv_producer"
        if self._kv_transfer_config.kv_role == "kv_both":
            raise ArgumentError(
                'GpushmemConnector: kv_role is "kv_both": an engine is a "kv_producer", which '
                'prefills, or a "kv_consumer", which decodes'
            )
        self._block = vllm_config.cache_config.block_size
        self._prefilled: dict[str, Prefilled] = {}
        self._next = Step()
        self._pending: set[str] = set()  # requests whose pages workers still have to send
        self._transfers: Transfers | None = None
        self._computes = False  # whether this step runs the model
        if role == KVConnectorRole.WORKER:
            self._transfers = Transfers(vllm_config, kv_cache_config, self._is_prefill)

    # --- the scheduler

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All tokens of the prompt come from the engine that prefills, without waiting for them."""
        params = request.kv_transfer_params or {}
        if self._is_prefill or "transfer" not in params or params.get("asked"):
            return 0, False
        missing = request.num_prompt_tokens - num_computed_tokens
        return (missing, True) if missing > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember what is prefilled here, or has room for what comes."""
        params = request.kv_transfer_params or {}
        own = f"{self._kv_transfer_config.engine_id} {request.request_id}"
        name = str(params.get("transfer", own if params.get("do_remote_decode") else ""))
        if not name:
            return
        if self._is_prefill:
            self._prefilled.setdefault(
                request.request_id, Prefilled(name, request.num_prompt_tokens)
            )
        elif num_external_tokens > 0:
            table = list(blocks.get_block_ids()[0])
            pages = -(-request.num_prompt_tokens // self._block)
            known = (request.num_prompt_tokens - num_external_tokens) // self._block
            source = int(params.get("prefill", 0))
            self._next.received.append(
                Received(request.request_id, name, table[:pages], known, source)
            )
            params["asked"] = True  # if it fails, the request is computed here

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return what workers begin in this step."""
        for new in scheduler_output.scheduled_new_reqs:
            self._grown(scheduler_output, new.req_id, new.block_ids, new.num_computed_tokens, True)
        known = scheduler_output.scheduled_cached_reqs
        for request, blocks, computed in zip(
            known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True
        ):
            anew = request in known.resumed_req_ids
            self._grown(scheduler_output, request, blocks, computed, anew)
        step, self._next = self._next, Step()
        return step

    def _grown(self, output: Any, request: str, blocks: Any, computed: int, anew: bool) -> None:
        state = self._prefilled.get(request)
        if state is None or state.is_whole:
            return
        new = list(blocks[0]) if blocks else []
        state.blocks = new if anew else state.blocks + new
        if computed + output.num_scheduled_tokens[request] >= state.tokens:
            state.is_whole = True
            pages = -(-state.tokens // self._block)
            self._next.sent.append(Sent(request, state.transfer, state.blocks[:pages]))
            self._pending.add(request)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the pages of a request until they are sent."""
        state = self._prefilled.pop(request.request_id, None)
        if state is None:
            return False, None
        if state.is_whole and request.status in DONE:
            extra = self._kv_transfer_config.kv_connector_extra_config
            return True, {"transfer": state.transfer, "prefill": extra.get("instance", 0)}
        self._next.given_up.append(state.transfer)
        return state.is_whole, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """`request_finished`; only models with one group of layers have this connector."""
        return self.request_finished(request, block_ids[0])

    def update_connector_output(self, connector_output: Any) -> None:
        """Forget requests whose pages have been sent."""
        self._pending -= connector_output.finished_sending or set()

    def has_pending_push_work(self) -> bool:
        """Whether workers have pages to send: vLLM then goes on making steps."""
        return bool(self._pending or self._next.given_up)

    # --- workers

    @property
    def _there(self) -> Transfers:
        assert self._transfers is not None
        return self._transfers

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """Meet the other engines' workers; they wait for each other."""
        self._there.start(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the model runs: what can be sent while it does is begun."""
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Step)
        self._there.begin(connector_metadata.sent, connector_metadata.given_up)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Ask for the pages of new requests."""
        self._computes = forward_context.attn_metadata is not None
        self._there.ask(self._get_connector_metadata().received)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request runs when all of its pages are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Send this layer of the requests that it completes."""
        self._there.send(layer_name)

    def wait_for_save(self) -> None:
        """Send what is left; does not wait: pages stay until `get_finished` names their request."""
        self._there.go_on()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return whose pages have been sent, have come, and will not come."""
        sent, received, failed = self._there.results()
        if not (self._computes or sent or received):
            time.sleep(PAUSE)  # vLLM makes one step after the other while somebody waits
        return KVConnectorTransferResults(sent, received, failed)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Wait for what is being read before others write to its pages."""
        self._there.settle()

    def shutdown(self) -> None:
        """Leave the other engines."""
        if self._transfers is not None:
            self._transfers.close()
