"""Weights from a trainer to generators that never stop: reinforcement learning in the shape of GRPO.

    monarch-hpc run --local 2 examples/weight_sync.py

Generators answer prompts with their weights, and rank the answers to a prompt among themselves. The trainer learns from
that, and publishes a new version of the weights every few batches, as bfloat16. Meanwhile the generators read the last
version into a second model, and change over when it has arrived: what they lose is the time of that change.
"""

from __future__ import annotations

import time

import torch

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint
from monarch_hpc.rdma import RDMAState

NUM_TOKENS = 8
GROUP_SIZE = 16  # answers to each prompt
NUM_BATCHES = 150  # of each generator
BATCHES_PER_VERSION = 4
WIDTH = 256


def make_model(dtype: torch.dtype) -> torch.nn.Module:
    layers = torch.nn.Embedding(NUM_TOKENS, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, NUM_TOKENS)
    return torch.nn.Sequential(*layers).to(dtype)


class Trainer(Actor):
    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = make_model(torch.float32)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.state = RDMAState(self.model.state_dict(), copies=2, dtype=torch.bfloat16)
        self.num_batches, self.longest_s = 0, 0.0

    @endpoint
    def weights(self) -> RDMAState:
        return self.state

    @endpoint
    def learn(self, prompts_BG: torch.Tensor, tokens_BG: torch.Tensor, advantages_BG: torch.Tensor) -> None:
        """B = prompts, G = answers to each."""
        scores = torch.log_softmax(self.model(prompts_BG), -1).gather(-1, tokens_BG[..., None])[..., 0]
        loss = -(advantages_BG * scores).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_batches += 1
        if self.num_batches % BATCHES_PER_VERSION == 0:
            began_s = time.perf_counter()
            self.state.publish()
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)

    @endpoint
    def longest_publish_s(self) -> float:
        return self.longest_s


class Generator(Actor):
    def __init__(self, trainer: ActorMesh[Trainer], state: RDMAState) -> None:
        torch.set_num_threads(1)
        self.trainer, self.state = trainer, state
        self.model, self.spare = make_model(torch.bfloat16), make_model(torch.bfloat16)

    @endpoint
    async def generate(self) -> tuple[int, float, float, float]:
        """Return the version read last, the seconds of all and of the stalls, and the reward of the last batch."""
        prompts_BG = torch.arange(NUM_TOKENS).repeat_interleave(GROUP_SIZE).reshape(-1, GROUP_SIZE)
        version = await self.state.read_into(self.model.state_dict())
        reading = self.state.read_into(self.spare.state_dict())
        began_s, stall_s = time.perf_counter(), 0.0
        for _ in range(NUM_BATCHES):
            with torch.no_grad():
                chances = torch.softmax(self.model(prompts_BG).float(), -1)
            tokens_BG = torch.distributions.Categorical(chances).sample()
            rewards_BG = (tokens_BG == (3 * prompts_BG + 1) % NUM_TOKENS).float()
            advantages_BG = (rewards_BG - rewards_BG.mean(1, keepdim=True)) / (rewards_BG.std(1, keepdim=True) + 0.1)
            await self.trainer.learn.call_one(prompts_BG, tokens_BG, advantages_BG)
            changes_s = time.perf_counter()
            if reading.done():
                version = reading.result()
                self.model, self.spare = self.spare, self.model
                reading = self.state.read_into(self.spare.state_dict())
            stall_s += time.perf_counter() - changes_s
        await reading
        return version, time.perf_counter() - began_s, stall_s, float(rewards_BG.mean())


hosts = monarch_hpc.hosts()
first = hosts.slice(**dict.fromkeys(hosts.extent, 0))
trainer = first.spawn_procs(name="trainer").spawn("trainer", Trainer)
state = trainer.weights.call_one().get()
generators = hosts.spawn_procs(name="generators").spawn("generator", Generator, trainer, state)

rewards = []
for point, (version, all_s, stall_s, reward) in generators.generate.call().get().items():
    rewards.append(reward)
    print(f"generator {point}: version {version}, reward {reward:.2f}, stalled {stall_s:.4f} of {all_s:.2f} s")
longest_s = trainer.longest_publish_s.call_one().get()
num_versions = state.version().get()
print(f"{num_versions} versions of {state.size()} bytes; publishing one took the trainer {longest_s:.4f} s at most")
if min(rewards) < 0.8:
    raise SystemExit(f"the generators should have learned the answers: {rewards}")
