#!/usr/bin/env python3
"""cluster.py - holds the files of examples/cluster against the parts of their schemas that they use, and tries each
command line of dprun in them: cluster.py FOLDER DPRUN

A schema is the shape that a file must have: a dict has these keys and no others ("key?": may be missing), a list has
elements of its one shape, a type is the type of a value, anything else is the value itself. Exits with 77 without PyYAML.
"""
import os
import re
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("no PyYAML here: skipped")
    sys.exit(77)

ANY = object()
NAMED = {"name": str}
SECURITY = {"runAsUser?": int, "fsGroup?": int}
CONTAINER = {"name": str, "image?": str, "command?": [str], "env?": [{"name": str, "value": str}],
             "securityContext?": SECURITY, "volumeMounts?": [{"name": str, "mountPath": str}]}
POD = {"containers": [CONTAINER], "volumes?": [{"name": str, "secret": {"secretName": str, "defaultMode": int}}],
       "securityContext?": SECURITY, "restartPolicy?": "Never", "terminationGracePeriodSeconds?": int}
REPLICA = {"replicas": int, "template": {"spec": POD}}
SERVICE = {"image": str, "user": str, "environment": {"DP_SECRET_FILE": str}, "secrets": [str], "shm_size": str,
           "command": [str]}

SCHEMAS = {
    "mpijob.yaml": {
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": NAMED,
        "spec": {"slotsPerWorker": int, "sshAuthMountPath": str, "runPolicy": {"cleanPodPolicy": "Running"},
                 "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA}}},
    "trainjob.yaml": {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": NAMED,
        "spec": {"runtimeRef": NAMED,
                 "trainer": {"image": str, "numNodes": int, "numProcPerNode": int, "command": [str],
                             "env": [{"name": str, "value": str}]},
                 "podTemplateOverrides": [{"targetJobs": [NAMED], "spec": POD}]}},
    "jobset.yaml": {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": NAMED,
        "spec": {"network": {"enableDNSHostnames": True}, "failurePolicy": {"maxRestarts": int},
                 "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": {
                     "parallelism": int, "completions": int, "completionMode": "Indexed", "backoffLimit": int,
                     "template": {"spec": POD}}}}]}},
    "skypilot.yaml": {"name": str, "num_nodes": int, "resources": {"cpus": ANY}, "workdir": str,
                      "file_mounts": {"~/dp-secret": str}, "run": str},
    "compose.yaml": {"x-node": ANY, "services": {"node0": SERVICE, "node1": SERVICE}, "secrets": {"job": {"file": str}}},
}
# Variables that each starter sets; PET_* as Kubeflow's trainer does.
ENVIRONMENT = {"JOB_COMPLETION_INDEX": "1", "SLURM_JOB_ID": "7", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2",
               "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "PET_NNODES": "2", "PET_NODE_RANK": "1",
               "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "29500", "PET_NPROC_PER_NODE": "4"}


def faults_of(value, shape, where):
    if shape is ANY:
        return
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield "%s: no mapping" % where
            return
        keys = {key.rstrip("?"): part for key, part in shape.items()}
        for key in value:
            if key not in keys:
                yield "%s: %s is not of the schema" % (where, key)
        for key in shape:
            name = key.rstrip("?")
            if name in value:
                yield from faults_of(value[name], keys[name], "%s.%s" % (where, name))
            elif not key.endswith("?"):
                yield "%s: %s is missing" % (where, name)
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            yield "%s: no list, or an empty one" % where
            return
        for i, element in enumerate(value):
            yield from faults_of(element, shape[0], "%s[%d]" % (where, i))
    elif isinstance(shape, type):
        if not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
            yield "%s: %r is no %s" % (where, value, shape.__name__)
    elif value != shape:
        yield "%s: %r, not %r" % (where, value, shape)


def commands_of(value):
    """Command lines that begin with dprun, at any depth."""
    if isinstance(value, list) and value and value[0] == "dprun":
        yield [re.sub(r"\$\((\w+)\)", lambda name: ENVIRONMENT[name.group(1)], word) for word in value]
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from commands_of(part)


def run(command, dprun, work):
    """Its dprun says what it would start, and starts nothing."""
    environment = dict(os.environ, PATH=work + ":" + os.environ["PATH"], DP_SECRET_FILE=work + "/secret", **ENVIRONMENT)
    result = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=60, check=False)
    said = result.stdout + result.stderr
    if result.returncode != 0 or "nothing started" not in said:
        yield "%s: code %d: %s" % (" ".join(command), result.returncode, said[-500:])


def main(folder, dprun):
    faults = []
    with tempfile.TemporaryDirectory() as work:
        with open(os.open(work + "/secret", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32))
        # dprun by its name, which only looks; the programs that it would start.
        for name, text in {"dprun": 'exec %s --dry-run "$@"' % os.path.realpath(dprun), "gpt2": "", "train": ""}.items():
            with open(os.open("%s/%s" % (work, name), os.O_WRONLY | os.O_CREAT, 0o755), "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n%s\n" % text)
        for name, schema in SCHEMAS.items():
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                value = yaml.safe_load(file)
            faults += faults_of(value, schema, name)
            commands = list(commands_of(value))
            if name == "skypilot.yaml":
                commands = [["bash", "-ec", value["run"].replace("~/dp-secret", "secret")]]
            if name == "mpijob.yaml":
                with open(work + "/hostfile", "w", encoding="ascii") as file:
                    file.write("train-worker-0 slots=4\ntrain-worker-1 slots=4\n")
                commands = [[word.replace("/etc/mpi", work) for word in command] for command in commands]
            if not commands:
                faults.append("%s has no command line of dprun" % name)
            for command in commands:
                faults += run(command, dprun, work)
        unknown = set(os.listdir(folder)) - set(SCHEMAS) - {"slurm.sh", "ray_job.py", "Dockerfile"}
        faults += ["%s: no test knows it" % name for name in sorted(unknown - {"__pycache__"})]
    good = SCHEMAS["trainjob.yaml"]["spec"]["trainer"]
    for wrong in ({}, {"image": 1}, [], {"more": 1}):  # the checker finds faults
        if not list(faults_of(wrong, good, "planted")):
            faults.append("not found: %r" % wrong)
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


sys.exit(main(*sys.argv[1:]))
