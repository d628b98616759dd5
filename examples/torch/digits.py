"""Trains a small convolutional net on scanned digits: ringrun -np 2 python examples/torch/digits.py."""

import argparse
import hashlib
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt
import ringcore_torch as ring
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
parser.add_argument("--beside", type=Path, help="result.json of another run, whose loss is drawn beside this one's")
parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for loss.png and result.json")
args = parser.parse_args()

ring.init()
rank, size = ring.rank(), ring.size()
torch.manual_seed(rank)  # every rank starts elsewhere; the broadcast below makes them equal

digits = load_digits()  # 1797 handwritten digits of 8 x 8 pixels, scanned
split = train_test_split(digits.images / 16, digits.target, test_size=360, random_state=0, stratify=digits.target)
images, test_images = (torch.tensor(part, dtype=torch.float32).unsqueeze(1) for part in split[:2])
labels, test_labels = (torch.tensor(part) for part in split[2:])

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * size, momentum=0.9, weight_decay=1e-3)
optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
ring.broadcast_parameters(model.state_dict(), root_rank=0)
ring.broadcast_optimizer_state(optimizer, root_rank=0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

losses, times, seconds = [], [], 0.0
steps = len(images) // (args.batch_size * size)
for epoch in range(args.epochs):
    # The same order on every rank, of which each takes its part.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    batches = order[: steps * args.batch_size * size].view(steps, size, args.batch_size)[:, rank]
    start = time.perf_counter()
    for batch in batches:
        shifted = images[batch].roll(tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(2, 3))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(shifted), labels[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(seconds + time.perf_counter() - start)
    seconds += time.perf_counter() - start
    scheduler.step()
    if rank == 0:
        print(f"epoch {epoch + 1:2}/{args.epochs}  loss {sum(losses[-steps:]) / steps:.4f}", flush=True)

with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).digest()
digests = ring.allgather(torch.tensor([list(digest)], dtype=torch.uint8), name="digests")
same_weights = bool((digests == digests[0]).all())
mean_loss = ring.allreduce(torch.tensor(losses), op=ring.Average, name="losses")

if rank == 0:
    speed = args.epochs * steps * args.batch_size * size / seconds
    print(f"test accuracy {accuracy:.2%}, {speed:.0f} images/s on {size} rank{'s' * (size > 1)}")
    print(f"all {size} ranks hold bitwise the same weights: {'yes' if same_weights else 'NO'}")
    args.output.mkdir(parents=True, exist_ok=True)
    result = {
        "ranks": size, "accuracy": accuracy, "images_per_second": speed, "same_weights": same_weights,
        "seconds": times, "losses": mean_loss.tolist(),
    }  # fmt: skip
    (args.output / "result.json").write_text(json.dumps(result) + "\n")
    figure, axes = plt.subplots()
    for curve in [*([json.loads(args.beside.read_text())] if args.beside else []), result]:
        window = len(curve["losses"]) // args.epochs  # a mean over one epoch, as single batches differ
        smooth = torch.tensor(curve["losses"]).unfold(0, window, 1).mean(1)
        label = f"{curve['ranks']} rank{'s' * (curve['ranks'] > 1)}: {curve['images_per_second']:.0f} images/s"
        axes.plot(curve["seconds"][window - 1 :], smooth, label=label)
    axes.set(title=f"digits, {args.epochs} epochs", xlabel="seconds of training", ylabel="loss", yscale="log")
    axes.legend()
    figure.savefig(args.output / "loss.png")
    print(f"loss over time: {args.output / 'loss.png'}")
