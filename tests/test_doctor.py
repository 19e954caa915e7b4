"""evo.cli.doctor_checks and its command: every state that a check can find, and what follows for a run."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import evo.cli.doctor as command
import fitness.cuda.nvidia
import fitness.sandbox.layers
from evo.cli import doctor_checks as doctor
from evo.cli.doctor_checks import MISSING, OK, UNUSABLE
from evo.cli.main import main
from evo.core.errors import EvoError
from evo.core.models import Model
from tests import cli_support

NO_GPU = SimpleNamespace(count=0, name="", problem="torch sees no CUDA GPU")
ONE_GPU = SimpleNamespace(count=1, name="NVIDIA H200", problem="")


def machine(gpus=NO_GPU, try_run=lambda: "estimating", **more):
    return doctor.Machine(lambda: gpus, try_run, **more)


def by_name(checks):
    return {check.name: check for check in checks}


def test_this_machine_is_looked_at():
    found = by_name(doctor.examine(machine()))
    assert found["Python"].state == OK
    assert found["torch"].found == metadata.version("torch")
    assert found["sandbox rlimits"].state == OK
    assert found["GPU"].found == "torch sees no CUDA GPU"
    assert found["evo run"].found == "estimating"
    assert {name for name, check in found.items() if check.needed} >= {"Python", "torch", "triton", "evo run"}
    assert all(check.fix for check in found.values() if check.state != OK)


def test_a_check_that_fails_says_so():
    def broken():
        raise ZeroDivisionError("in the check")

    found = by_name(doctor.examine(machine(try_run=broken)))
    assert found["evo run"].state == UNUSABLE
    assert found["evo run"].needed
    assert "the check itself failed: ZeroDivisionError: in the check" in found["evo run"].found


def test_a_run_that_does_not_work_is_told_with_its_reason():
    def failing():
        raise EvoError("expected a runner on GPU 0,\nbut it did not start")

    check = by_name(doctor.examine(machine(ONE_GPU, failing)))["evo run"]
    assert (check.state, check.found) == (UNUSABLE, "expected a runner on GPU 0, but it did not start")
    assert "--gpus none" in check.fix


@pytest.mark.parametrize(
    ("name", "supported", "state", "words"),
    [
        ("torch", ">=2,<3", OK, "2."),
        ("torch", "<2", UNUSABLE, "supported: <2"),
        ("no-such-package-as-this", ">=1", MISSING, "supported: >=1"),
    ],
)
def test_packages(name, supported, state, words):
    check = doctor._package(name, SpecifierSet(supported))
    assert check.state == state
    assert words in check.found
    assert bool(check.fix) == (state != OK)


def test_packages_of_extras_are_read_from_the_metadata(monkeypatch):
    requires = ["torch>=1", 'torch>=1; extra == "gpu"', 'no-such-package-as-this>=2; extra == "gpu"']
    monkeypatch.setattr(metadata, "requires", lambda package: requires)
    assert doctor._optional("gpu", "torch").state == OK
    missing = doctor._optional("gpu", "no-such-package-as-this")
    assert (missing.state, missing.needed, missing.fix) == (
        MISSING,
        False,
        '.venv/bin/pip install -e ".[gpu]" in the folder of evo',
    )
    assert "knows no extra" in doctor._optional("gpu", "numpy").found


def test_disk(tmp_path):
    assert doctor._disk(tmp_path / "not" / "yet", 1).state == OK
    assert not (tmp_path / "not").exists()
    full = doctor._disk(tmp_path, 1 << 60)
    assert (full.state, full.needed) == (UNUSABLE, True)
    assert "1.1e+09 GiB needed" in full.found
    assert "cannot be written" in doctor._disk(doctor.Path("/proc/evo"), 1).found


def test_layers_that_are_missing_are_named_with_their_reason(monkeypatch):
    layers = {"userns": "OSError: [Errno 1] Operation not permitted", "seccomp": "active"}
    monkeypatch.setattr(fitness.sandbox.layers, "available_layers", lambda: layers)
    found = by_name(doctor._sandbox())
    assert found["sandbox seccomp"].state == OK
    assert found["sandbox userns"].state == MISSING
    assert "not permitted" in found["sandbox userns"].found
    assert "max_user_namespaces" in found["sandbox userns"].fix


@pytest.mark.parametrize(
    ("path", "gpu", "problem", "state", "words"),
    [
        ("", True, "", MISSING, "not found"),
        ("/bin/ncu", True, "", OK, "1.2, works on GPU 0"),
        ("/bin/ncu", False, "", UNUSABLE, "has no GPU for it"),
        ("/bin/ncu", True, "no permission to read the GPU's performance counters", UNUSABLE, "no permission"),
    ],
)
def test_tools(monkeypatch, path, gpu, problem, state, words):
    monkeypatch.setattr(fitness.cuda.nvidia, "find_tool", lambda name: path)
    monkeypatch.setattr(fitness.cuda.nvidia, "tool_version", lambda path: "1.2")
    monkeypatch.setattr(fitness.cuda.nvidia, "tool_problem", lambda name, path: problem)
    check = doctor._tool("ncu", gpu)
    assert check.state == state
    assert words in check.found
    assert ("NVreg_RestrictProfilingToAdminUsers" in check.fix) == bool(problem)


def test_a_cluster_that_does_not_answer(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(doctor, "RAY_S", 0.5)
    installed, cluster = doctor._ray("127.0.0.1:1")
    assert installed.state == OK
    assert cluster.state == UNUSABLE
    assert "no answer within 0.5 s" in cluster.found


class Server:
    """An endpoint that answers GET with `status` and `body`."""

    def __init__(self, status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                data = body.encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


SERVED = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]})


@pytest.mark.parametrize(
    ("name", "status", "body", "state", "words"),
    [
        ("m", 200, SERVED, OK, "served by http://127.0.0.1"),
        ("other", 200, SERVED, UNUSABLE, "serves m, not other"),
        ("m", 404, "{}", OK, "keeps no list"),
        ("m", 200, '"hello"', OK, "keeps no list"),
        ("m", 200, '{"object": "list", "data": []}', OK, "keeps no list"),  # models are loaded when asked for
        ("m", 401, '{"error": {"message": "bad key sk-secret"}}', UNUSABLE, "put a key into EVO_API_KEY_M"),
        ("m", 500, "{}", UNUSABLE, "500"),
    ],
)
def test_endpoints_are_asked_for_their_models(monkeypatch, name, status, body, state, words):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with Server(status, body) as server:
        check = doctor._model(Model(name, server.url))
    assert check.state == state
    assert check.needed
    assert words in check.found
    assert "sk-secret" not in check.found


def test_an_endpoint_that_is_not_there():
    pytest.importorskip("openai")
    check = doctor._model(Model("m", "http://127.0.0.1:9/v1"))
    assert check.state == UNUSABLE
    assert "http://127.0.0.1:9/v1: Connection error" in check.found


def test_mailboxes_and_replays(tmp_path):
    box = doctor._model(Model("me", f"mailbox:{tmp_path / 'box'}"))
    assert (box.name, box.state) == ("model me", OK)
    replay = doctor._model(Model("m", f"replay:{tmp_path / 'nothing'}"))
    assert replay.state == UNUSABLE
    assert "nothing" in replay.found


# --- the command -----------------------------------------------------------------------------------------------------


def test_json_and_exit_code_of_a_machine_that_works(monkeypatch, capsys):
    opened = cli_support.install(monkeypatch.setattr)
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["works"], facts["kind"]) == (True, "estimated")
    assert [e.closed for e in opened] == [True]
    assert facts["checks"][0].keys() == {"name", "state", "found", "fix", "needed"}


def test_a_machine_that_does_not_work_exits_with_1(monkeypatch, capsys):
    cli_support.install(monkeypatch.setattr)
    monkeypatch.setattr(command, "TASK", cli_support.BROKEN)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "not usable  evo run: task broken: expected a right seed kernel" in out
    assert out.endswith("`evo run` does not work here\n")


def test_a_gpu_that_is_asked_for_and_missing(monkeypatch, capsys):
    cli_support.install(monkeypatch.setattr)
    assert main(["doctor", "--gpus", "1", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["works"], facts["kind"]) == (False, None)
    assert "torch sees no CUDA GPU" in facts["checks"][-1]["found"]


def test_a_model_that_cannot_be_asked_is_needed(monkeypatch, capsys):
    pytest.importorskip("openai")
    cli_support.install(monkeypatch.setattr)
    assert main(["doctor", "--model", "m@http://127.0.0.1:9/v1"]) == 1
    assert "not usable  model m: http://127.0.0.1:9/v1" in capsys.readouterr().out


def test_an_unknown_target_is_misuse(capsys):
    assert main(["doctor", "--target", "sm_1"]) == 2
    assert "target: expected one of sm_90" in capsys.readouterr().err


def test_what_is_required_is_known_from_the_source_tree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    installed = doctor._project()
    monkeypatch.setattr(doctor.metadata, "metadata", not_installed)
    python, requirements = doctor._project()
    assert set(python.split(",")) == set(installed[0].split(","))
    names = {Requirement(text).name for text in requirements}
    assert {"torch", "triton", "ray", "nvidia-ml-py"} <= names
