"""Classify images: a vision transformer, its own image processor, and a regularised Trainer.

    python examples/images.py --model google/vit-base-patch16-224-in21k --train-folder photos --output-dir runs/photos

The folder has one for each class, such as photos/cats/1.jpg. Without it, circles and squares are drawn. AD-DROP drops
attention between the class token and the patches, which are the tokens here. It needs Pillow: `pip install pillow`.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from datasets import load_dataset
from PIL import Image, ImageDraw
from transformers import AutoImageProcessor, AutoModelForImageClassification, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google/vit-base-patch16-224-in21k")
parser.add_argument("--train-folder", help="with a folder for each class")
parser.add_argument("--epochs", type=float, default=2)
parser.add_argument("--output-dir", default="runs/images")
options = parser.parse_args()


def draw_shapes(folder, count=64, side=48):
    """Draw bright circles and squares on noise, half of the images each."""
    random = np.random.default_rng(0)
    for number in range(count):
        name = ("circles", "squares")[number % 2]
        image = Image.fromarray(random.integers(0, 80, size=(side, side, 3)).astype(np.uint8))
        size = int(random.integers(side // 4, side // 2))
        left, top = random.integers(0, side - size, size=2).tolist()
        shape = {"circles": ImageDraw.Draw(image).ellipse, "squares": ImageDraw.Draw(image).rectangle}[name]
        shape((left, top, left + size, top + size), fill=tuple(random.integers(150, 255, size=3).tolist()))
        (folder / name).mkdir(parents=True, exist_ok=True)
        image.save(folder / name / f"{number}.png")


with tempfile.TemporaryDirectory() as temporary:
    folder = options.train_folder
    if folder is None:
        folder = Path(temporary) / "shapes"
        draw_shapes(folder)
    rows = load_dataset(
        "imagefolder", data_dir=str(folder), split="train", cache_dir=Path(temporary) / "cache", keep_in_memory=True
    )
    names = rows.features["label"].names
    rows = rows.train_test_split(0.25, seed=0, stratify_by_column="label")

    processor = AutoImageProcessor.from_pretrained(options.model)
    model = AutoModelForImageClassification.from_pretrained(
        options.model, id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)}
    )

    def pixels(batch):
        """Read the images of a batch when it is needed, so that no others are in memory."""
        images = [image.convert("RGB") for image in batch["image"]]
        return {**processor(images, return_tensors="pt"), "labels": batch["label"]}

    rows = rows.with_transform(pixels)
    trainer = RegularizedTrainer(
        model=model,
        args=TrainingArguments(
            options.output_dir,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=16,
            learning_rate=1e-4,
            remove_unused_columns=False,  # the images, of which pixels are made
            logging_steps=4,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))},
        regularizer=ADDrop(),
    )
    trainer.train()
    print(f"Accuracy on other images: {trainer.evaluate()['eval_accuracy']:.2f}")
    trainer.save_model()
    processor.save_pretrained(options.output_dir)

    with torch.no_grad():
        logits = trainer.model.eval()(pixel_values=rows["test"][:4]["pixel_values"].to(trainer.model.device)).logits
    print(f"The first four: {[names[number] for number in logits.argmax(-1).tolist()]}")
