"""Checks manifests of `loongforge launch --on k8s` against Kubernetes' own schemas.

    PYTHON tests/oracle/kubernetes.py FILE…

PYTHON has kubernetes-validate, which brings the schemas. A JobSet's jobs are checked as the Jobs that it makes of them;
the schema of the JobSet itself is no part of Kubernetes, so its own fields are checked by name (jobset v1alpha2).
"""

import sys

import kubernetes_validate
import yaml

VERSION = "1.31"
# https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
SPEC = {"replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend", "coordinator", "managedBy", "ttlSecondsAfterFinished"}
FIELDS = {
    "network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    "startupPolicy": {"startupPolicyOrder"},
    "successPolicy": {"operator", "targetReplicatedJobs"},
    "failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
}
RULE = {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
REPLICATED = {"name", "replicas", "template", "groupName", "dependsOn"}


def unknown(what, found, known):
    extra = set(found) - known
    if extra:
        raise SystemExit(f"{what} has unknown fields: {sorted(extra)}")


def jobs(document):
    """The Jobs that a JobSet makes."""
    spec = document["spec"]
    unknown("spec", spec, SPEC)
    for name, known in FIELDS.items():
        unknown(f"spec.{name}", spec.get(name, {}), known)
    for rule in spec["failurePolicy"]["rules"]:
        unknown("a rule of spec.failurePolicy", rule, RULE)
        assert rule["action"] in ACTIONS, rule
    for job in spec["replicatedJobs"]:
        unknown(f"replicated job {job['name']}", job, REPLICATED)
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}


def main():
    count = 0
    for path in sys.argv[1:]:
        with open(path) as text:
            documents = list(yaml.safe_load_all(text))
        assert {document["kind"] for document in documents} == {"ConfigMap", "JobSet"}, path
        for document in documents:
            for manifest in [document] if document["kind"] == "ConfigMap" else list(jobs(document)):
                kubernetes_validate.validate(manifest, VERSION, strict=True)
                count += 1
    print(f"{count} manifests are valid for Kubernetes {VERSION}")
    if not count:
        raise SystemExit("name manifests")


if __name__ == "__main__":
    main()
