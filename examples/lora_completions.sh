#!/usr/bin/env bash
# Fine-tune a Llama with a LoRA adapter and AD-DROP to complete prompts, score it, and complete new ones.
#
#     bash examples/lora_completions.sh [MODEL] [OUTPUT_DIR]
#
# The prompts are messages of customers, the completions the names of the teams that should answer.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
model="${1:-meta-llama/Llama-3.2-1B}"
output="${2:-runs/lora-completions}"

attendrop train \
    --train-file "$here/tickets_train.csv" --eval-file "$here/tickets_dev.csv" \
    --text-columns message --label-column team --label-type completion --task-set max_new_tokens=4 \
    --model "$model" --lora r=8 --lora targets=all-linear --method ad-drop --set cross_tuning=false \
    --epochs 1 --batch-size 8 --output-dir "$output"

attendrop predict "$output" --predict-file "$here/tickets_dev.csv" --output "$output/completions.jsonl"

python - "$output" <<'EOF'
import sys

from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1])
print("PEFT loads the adapter, of rank", model.peft_config["default"].r)
EOF
