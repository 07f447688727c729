# /// script
# requires-python = "==3.11.*"
# dependencies = ["flwr[simulation]==1.41.0", "torch==2.15.0", "numpy==2.4.6"]
# ///
"""Train the task with Flower: its FedAvg in its simulation, with one Ray actor."""

from __future__ import annotations

import os
import sys

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1", RAY_worker_niceness="0")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Task, Turns, save_weights, task_of_process
from torch import nn

server, client = ServerApp(), ClientApp()
task_path, weights_path = sys.argv[1:]


@client.train()
def train(message: Message, context: Context) -> Message:
    task, partition = task_of_process(task_path), int(context.node_config["partition-id"])
    network = task.network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=task.lr)
    loss = nn.CrossEntropyLoss()
    for images, labels in task.batches(int(message.content["config"]["server-round"]) - 1, partition):
        optimizer.zero_grad()
        loss(network(images), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": task.sizes_N[partition]})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    task = Task(task_path)
    turns = Turns(task.rounds, "flwr", "ray")
    network = task.network()

    def between_rounds(round: int, arrays: ArrayRecord) -> None:
        turns.between_rounds()

    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord(network.state_dict())
    result = strategy.start(grid, arrays, num_rounds=task.rounds, evaluate_fn=between_rounds)
    network.load_state_dict(result.arrays.to_torch_state_dict())
    save_weights(network, weights_path)


if __name__ == "__main__":
    backend = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=len(Task(task_path).sizes_N), backend_config=backend)
