"""Container files, checked without an engine: they parse, and the files and commands they name exist."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cfel.cli.dispatch import build_parser
from cfel.deployment.protocol.addresses import split_address
from cfel.experiment import load_experiment
from cfel.launch.node import NodeFile, read_node

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"
FEDERATION = CONTAINERS / "federation"
NODES = [f"edge-{i}" for i in range(3)] + [f"device-{n}" for n in range(6)]
COMPOSE = yaml.safe_load((FEDERATION / "compose.yaml").read_text(encoding="utf-8"))
KUSTOMIZATION = yaml.safe_load((FEDERATION / "kustomization.yaml").read_text(encoding="utf-8"))
GUIDE = (ROOT / "docs" / "guides" / "containers.md").read_text(encoding="utf-8")


def manifests(kind: str) -> list[Any]:
    texts = [(FEDERATION / name).read_text(encoding="utf-8") for name in KUSTOMIZATION["resources"]]
    return [each for text in texts for each in yaml.safe_load_all(text) if each["kind"] == kind]


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile with its arguments; continued lines are joined."""
    text = (CONTAINERS / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


@pytest.fixture(scope="module")
def node_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NodeFile]:
    """The node files as a node reads them: beside the experiment."""
    folder = tmp_path_factory.mktemp("etc")
    shutil.copy(FEDERATION / "experiment.toml", folder)
    for path in (FEDERATION / "nodes").iterdir():
        shutil.copy(path, folder)
    return {path.stem: read_node(path) for path in folder.glob("*-*.toml")}


def test_the_images_run_as_an_ordinary_user_and_copy_what_exists() -> None:
    stages: set[str] = set()
    users: dict[str, str] = {}
    stage = ""
    for word, rest in instructions():
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            assert base == "${BASE}" or base in stages
            stages.add(stage)
            users[stage] = users.get(base, "root")
        elif word == "USER":
            users[stage] = rest
        elif word == "COPY" and "--from=" not in rest:
            assert [name for name in rest.split()[:-1] if not (ROOT / name).exists()] == []
        elif word == "COPY":
            assert re.findall(r"--from=(\S+)", rest)[0] in stages
    assert (users["cli"], users["node"]) == ("10001:10001", "10001:10001")
    assert ("ENTRYPOINT", '["cfel"]') in instructions()


def test_the_build_gets_what_it_copies_and_nothing_else() -> None:
    kept = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    assert sorted(kept) == sorted(name for names in copied for name in names)


def test_extras_exist_once_the_package_is_split() -> None:
    """Pip only warns of an unknown extra, so a misspelt one would give an image that cannot train."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r'"\.\[([\w,]+)\]"', (CONTAINERS / "Containerfile").read_text(encoding="utf-8"))
    unknown = set(named[0].split(",")) - set(project["optional-dependencies"])
    # As long as everything is a plain dependency, there is nothing to choose.
    assert not unknown or any(each.startswith("torch") for each in project["dependencies"])


def test_the_node_files_fit_the_experiment(node_files: dict[str, NodeFile]) -> None:
    fleet = load_experiment(FEDERATION / "experiment.toml").fleet
    assert (fleet.devices, fleet.clusters) == (6, 3)
    assert set(node_files) == {*NODES, "operator-0"}
    for name, found in node_files.items():
        assert str(found.node.identity) == name
        assert found.node.directory == Path("/var/lib/cfel") / name
        assert found.node.certificates == Path("/run/cfel/certificates")


def check_command(command: list[str], name: str) -> None:
    """The real command line understands it, and it names the node's own file."""
    parsed = build_parser(command[0]).parse_args(command)
    assert f"/etc/cfel/{name}.toml" in {str(value) for value in vars(parsed).values()}


@pytest.mark.parametrize("name", [*NODES, "operator-0"])
def test_a_service_has_its_own_key_and_a_command_that_exists(name: str) -> None:
    service = COMPOSE["services"]["operator" if name == "operator-0" else name]
    check_command(service["command"], name)
    mounted = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    # A directory: a file that is mounted alone stays the old one when it is replaced.
    assert mounted.pop("/run/cfel/certificates") == f"./own/{name}"
    for target, source in mounted.items():
        if source.startswith("./"):
            assert (FEDERATION / source).is_file()
        else:
            assert (source, target) == (name, "/var/lib/cfel")
            assert source in COMPOSE["volumes"]
    assert service["read_only"]


def test_services_have_the_names_that_nodes_call(node_files: dict[str, NodeFile]) -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in manifests("Service")}
    for number, address in enumerate(node_files["device-0"].node.addresses):
        host, port = split_address("address", address)
        assert host == f"edge-{number}"
        assert host in COMPOSE["services"]
        assert [each["port"] for each in services[host]["ports"]] == [port]
        assert services[host]["selector"] == {"statefulset.kubernetes.io/pod-name": host}


@pytest.mark.parametrize(("role", "count"), [("edge", 3), ("device", 6)])
def test_a_stateful_set_runs_the_nodes_of_a_role(role: str, count: int) -> None:
    (found,) = (each["spec"] for each in manifests("StatefulSet") if each["metadata"]["name"] == role)
    assert found["replicas"] == count
    pod = found["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,), (first,) = pod["containers"], pod["initContainers"]
    for number in range(count):
        name = f"{role}-{number}"
        check_command([word.replace("$(POD_NAME)", name) for word in container["args"]], name)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(mounts) == {"/etc/cfel", "/run/cfel/certificates", "/var/lib/cfel", "/tmp"}  # noqa: S108
    volumes = {each["name"]: each for each in pod["volumes"]}
    claims = {each["metadata"]["name"] for each in found["volumeClaimTemplates"]}
    # It runs beside the node, and copies what was renewed or revoked.
    assert first["restartPolicy"] == "Always"
    assert "revoked.txt" in first["args"][0]
    assert KUSTOMIZATION["secretGenerator"][0]["options"] == {"disableNameSuffixHash": True}
    used = {*mounts.values(), *(each["name"] for each in first["volumeMounts"])}
    assert used == {*volumes, *claims}
    # Keys of other nodes reach only the container that picks the pod's own.
    assert "all-certificates" not in mounts.values()
    assert volumes["configuration"]["configMap"]["name"] == KUSTOMIZATION["configMapGenerator"][0]["name"]
    assert volumes["all-certificates"]["secret"]["secretName"] == KUSTOMIZATION["secretGenerator"][0]["name"]


def test_the_kustomization_lists_every_file() -> None:
    (configuration,), (certificates,) = KUSTOMIZATION["configMapGenerator"], KUSTOMIZATION["secretGenerator"]
    assert configuration["files"] == ["experiment.toml", *(f"nodes/{name}.toml" for name in NODES)]
    assert [name for name in configuration["files"] if not (FEDERATION / name).is_file()] == []
    keys = [f"certificates/{name}.{kind}" for name in NODES for kind in ("pem", "key")]
    assert certificates["files"] == ["certificates/authority.pem", "certificates/revoked.txt", *keys]


def test_probes_ask_the_dashboard_of_an_edge_server(node_files: dict[str, NodeFile]) -> None:
    (edge,) = (each["spec"] for each in manifests("StatefulSet") if each["metadata"]["name"] == "edge")
    (container,) = edge["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = "readyz" if probe == "readinessProbe" else "healthz"
        assert f"http://{node_files['edge-0'].dashboard}/{path}" in container[probe]["exec"]["command"][-1]
    assert f"http://{node_files['edge-1'].dashboard}/healthz" in str(
        COMPOSE["services"]["edge-1"]["healthcheck"]
    )


def test_policies_let_nodes_call_edge_servers_only() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in manifests("NetworkPolicy")}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (ingress,) = policies["to-edge-servers"]["ingress"]
    assert [each["port"] for each in ingress["ports"]] == [7400]
    ports = [each["port"] for rule in policies["from-nodes"]["egress"] for each in rule["ports"]]
    assert ports == [7400, 53, 53]


def test_distributed_files_are_a_nodes_own(tmp_path: Path) -> None:
    """Also again, when the list of revoked ones has come."""
    shutil.copy(FEDERATION / "distribute.sh", tmp_path)
    made = tmp_path / "certificates"
    made.mkdir()
    for name in (
        "authority.pem",
        "authority.key",
        "edge-0.pem",
        "edge-0.key",
        "device-1.pem",
        "device-1.key",
    ):
        (made / name).write_text(name)
    command = ["sh", str(tmp_path / "distribute.sh")]
    # No operator has a certificate here, so the last pattern stays as it is written.
    (made / "operator-0.pem").touch()
    subprocess.run(command, check=True)
    assert {each.name for each in (tmp_path / "own/edge-0").iterdir()} == {
        "authority.pem",
        "edge-0.pem",
        "edge-0.key",
    }
    (made / "revoked.txt").write_text("1f\n")
    subprocess.run(command, check=True)
    assert (tmp_path / "own/device-1/revoked.txt").read_text() == "1f\n"


def test_commands_of_the_guide_exist() -> None:
    """Each `cfel …` in it parses, and the certificates it makes are for these nodes."""
    commands = [shlex.split(line)[1:] for line in re.findall(r"^cfel .*$", GUIDE, re.MULTILINE)]
    assert commands
    parsed = [build_parser(command[0]).parse_args(command) for command in commands]
    assert next((each.edges, each.devices) for each in parsed if hasattr(each, "edges")) == (3, 6)
    assert "Nobody has built or started these images" in GUIDE
