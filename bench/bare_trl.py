"""A training script as one writes it without this project: python -m bench.bare_trl ROWS MODEL OUT ARGUMENTS DTYPE

ARGUMENTS is a JSON file of `SFTConfig`'s. Prints the trainer's seconds and the SHA-256 of the weights.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def main() -> None:
    rows, model, out, arguments, dtype = sys.argv[1:]
    cache = str(Path(out) / "cache")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa"),
        args=SFTConfig(output_dir=out, report_to="none", **json.loads(Path(arguments).read_text())),
        train_dataset=load_dataset("json", data_files=rows, split="train", cache_dir=cache),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.train()
    trainer.save_model(str(Path(out) / "model"))
    weights = (Path(out) / "model" / "model.safetensors").read_bytes()
    seconds = next(entry["train_runtime"] for entry in trainer.state.log_history if "train_runtime" in entry)
    print(json.dumps({"trainer_seconds": seconds, "sha256": hashlib.sha256(weights).hexdigest()}))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
