#!/usr/bin/env bash
# Fine-tune on a CSV file, score it, and label new rows.
#
#     bash examples/own_csv.sh [MODEL] [OUTPUT_DIR]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
model="${1:-bert-base-uncased}"
output="${2:-runs/own-csv}"

attendrop train \
    --train-file "$here/tickets_train.csv" --eval-file "$here/tickets_dev.csv" \
    --text-columns message --label-column team \
    --model "$model" --method ad-drop --set p=0.3 --set q=0.3 \
    --epochs 2 --batch-size 8 --seed 0 --output-dir "$output"

attendrop predict "$output" --predict-file "$here/tickets_dev.csv" --text-columns message \
    --output "$output-labels.csv" --overwrite
