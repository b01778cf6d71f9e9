"""A small GPT that learns to write like text.txt, letter by letter, and survives its workers.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/gpt/train.py`.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import holdfast.torch


class Letters(Dataset):
    """Every stretch of the text is a sample: some letters, and the same shifted by one."""

    def __init__(self, text: str, length: int) -> None:
        self.alphabet = sorted(set(text))
        codes = {letter: code for code, letter in enumerate(self.alphabet)}
        self._data = torch.tensor([codes[letter] for letter in text])
        self._length = length

    def __len__(self) -> int:
        return len(self._data) - self._length

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        stretch = self._data[start : start + self._length + 1]
        return stretch[:-1], stretch[1:]

    def encode(self, text: str) -> torch.Tensor:
        return torch.tensor([self.alphabet.index(letter) for letter in text])


class Block(nn.Module):
    """One layer: look at the letters before, then think about each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_looking, self.before_thinking = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.ask(self.before_looking(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.mix(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.think(self.before_thinking(x)))


class Gpt(nn.Module):
    def __init__(self, letters: int, length: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.length = length
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.guess = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.guess(self.norm(self.blocks(self.letter(letters) + self.place(places))))

    @torch.no_grad()
    def write(self, begin: torch.Tensor, count: int) -> torch.Tensor:
        """Go on writing, each time the letter that seems most likely."""
        self.eval()
        for _ in range(count):
            guess = self(begin[None, -self.length :])[0, -1].argmax()
            begin = torch.cat([begin, guess[None]])
        return begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="stretches of a step, over all workers together")
    parser.add_argument("--length", type=int, default=48, help="letters of a stretch")
    parser.add_argument("--kill-at", type=int, help="let the last worker die in this step, once, to see what happens")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Letters(Path(__file__).with_name("text.txt").read_text(), options.length)
    model = Gpt(len(data.alphabet), options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state) as run:
        for step, (letters, wanted) in run.batches(data, options.batch, steps=options.steps, drop_last=True):
            with step:
                if step.number == options.kill_at and run.rank == run.world_size - 1 > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(letters).flatten(0, 1), wanted.flatten())
                loss.backward()
                mean = step.mean(loss)
                step.reduce_gradients(model)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if step.committed and run.rank == 0 and step.number % 25 == 0:
                print(f"step {step.number}: {run.world_size} workers, loss {mean:.3f}", flush=True)
        if run.rank == 0:
            written = model.write(data.encode("The "), 80).tolist()
            print("done: it writes:", "".join(data.alphabet[code] for code in written).replace("\n", " "))


if __name__ == "__main__":
    main()
