"""Ray: one actor per machine runs dprun and waits for it: python ray_job.py NODES RANKS_EACH ./train ARGUMENTS...

Tried with Ray 2.60 on two machines.
"""
import os
import secrets
import subprocess
import sys
import tempfile

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Node:
    def address(self):
        return ray.util.get_node_ip_address()

    def run(self, node, nodes, meet, secret, arguments):
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(secret)
            file.flush()
            command = ["dprun", "--node", f"{node}/{nodes}", "--meet", meet, *arguments]
            return subprocess.run(command, env=dict(os.environ, DP_SECRET_FILE=file.name), check=False).returncode


def main(nodes, ranks, program):
    ray.init()
    group = placement_group([{"CPU": ranks}] * nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    actors = [Node.options(num_cpus=ranks, scheduling_strategy=PlacementGroupSchedulingStrategy(group, i)).remote()
              for i in range(nodes)]
    meet = ray.get(actors[0].address.remote()) + ":29500"
    secret = secrets.token_bytes(32)
    codes = ray.get([actor.run.remote(i, nodes, meet, secret, ["-np", str(ranks), *program])
                     for i, actor in enumerate(actors)])
    return codes[0]  # number 0's is that of the job


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
