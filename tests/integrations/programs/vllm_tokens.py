"""Tokens of vLLM for some prompts: vllm_tokens.py MODEL [OPTION=VALUE...], options of `LLM`.

With KV=prefill|decode, ADDRESS and EXTRA (JSON) in the environment, by the connector; of several
engines that prefill, each has every so manieth prompt. Prints a line
of JSON for each prompt; then waits for the end of its input, if there is one.
"""

import json
import os
import sys
import time

PROMPTS = ["a long prompt, " * 12, "short", "another, " * 30, "a long prompt, " * 12 + "and more"]
KINDS = {"prefill": "kv_producer", "decode": "kv_consumer"}


def main(model, *options):
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    kind, given = os.environ.get("KV"), None
    extra = json.loads(os.environ.get("EXTRA", "{}"))
    engines, mine = extra.get("prefill", 1), extra.get("instance", 0)
    if kind:
        extra |= {"address": os.environ["ADDRESS"]}
        given = KVTransferConfig(
            kv_connector="GpushmemConnector", kv_role=KINDS[kind],
            kv_load_failure_policy="recompute", kv_connector_extra_config=extra,
        )  # fmt: skip
    asked = dict(option.split("=", 1) for option in options)
    llm = LLM(
        model=model, dtype="float32", max_model_len=512, max_num_seqs=4, seed=0, block_size=32,
        max_num_batched_tokens=512, kv_transfer_config=given,
        **{name: json.loads(text) for name, text in asked.items()},
    )  # fmt: skip
    print("ready", flush=True)
    if kind:
        time.sleep(float(sys.stdin.readline()))
    numbers = range(mine, len(PROMPTS), engines) if kind == "prefill" else range(len(PROMPTS))
    asks = [{"transfer": f"request {number}", "prefill": number % engines} for number in numbers]
    sampling = [
        SamplingParams(
            max_tokens=1 if kind == "prefill" else 12, temperature=0,
            extra_args={"kv_transfer_params": each} if kind else None,
        )
        for each in asks
    ]  # fmt: skip
    prompts = [PROMPTS[number] for number in numbers]
    for output in llm.generate(prompts, sampling, use_tqdm=False):
        ids = list(output.outputs[0].token_ids)
        print(json.dumps({"tokens": ids, "cached": output.num_cached_tokens}), flush=True)
    if kind:
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
