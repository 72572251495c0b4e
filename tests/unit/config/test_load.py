from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch_hpc.config.load import Loaded, load_config
from monarch_hpc.config.schema import InterfacesConfig
from monarch_hpc.core.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".config" / "monarch-hpc").mkdir(parents=True)
    (tmp_path / "home" / "project" / "deep").mkdir(parents=True)
    return tmp_path / "home"


def load(
    home: Path,
    environ: Mapping[str, str] | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    hostname: str = "login1",
    cluster_name: str | None = None,
) -> Loaded:
    return load_config({"HOME": str(home), **(environ or {})}, cwd or home, hostname, cluster_name, flags or {})


def write_user(home: Path, text: str) -> Path:
    path = home / ".config" / "monarch-hpc" / "config.yaml"
    path.write_text(text)
    return path


def write_project(home: Path, text: str) -> Path:
    path = home / "project" / "monarch-hpc.yaml"
    path.write_text(text)
    return path


def test_without_any_file_the_defaults_hold(home: Path) -> None:
    loaded = load(home)
    config = loaded.config
    assert (config.site, config.slurm.partition, config.slurm.time_min) == ("generic", None, 60)
    assert config.paths.shared == home / ".local/share/monarch-hpc"
    assert config.paths.state == home / ".local/state/monarch-hpc"
    assert config.agent.python.endswith("python") or "python3" in config.agent.python
    assert loaded.origin("slurm.time_min").startswith("configs/default.yaml:")
    default = (Path(__file__).parents[3] / "configs" / "default.yaml").read_text().splitlines()
    line = int(loaded.origin("slurm.time_min").rpartition(":")[2])
    assert default[line - 1] == "  time_min: 60"


def test_each_layer_wins_over_the_one_before_and_is_remembered(home: Path) -> None:
    user = write_user(
        home, "slurm:\n  time_min: 2\n  qos: user\n  account: user\n  partition: user\n  constraint: user\n"
    )
    project = write_project(home, "slurm: {qos: project, account: project, partition: project, constraint: project}\n")
    environ = {
        "SBATCH_ACCOUNT": "sbatch",
        "SLURM_ACCOUNT": "slurm",
        "SLURM_PARTITION": "slurm",
        "SBATCH_CONSTRAINT": "sbatch",
        "MONARCH_HPC_SLURM__PARTITION": "ours",
        "MONARCH_HPC_SLURM__CONSTRAINT": "ours",
    }
    loaded = load(
        home,
        environ,
        flags={"slurm.constraint": "flag", "slurm.qos": None},
        cwd=project.parent,
        cluster_name="slurmlab",
    )
    slurm = loaded.config.slurm
    expected = {
        "slurm.poll_min_s": (1.0, "configs/sites/slurmlab.yaml:"),
        "slurm.time_min": (2, f"{user}:2"),
        "slurm.qos": ("project", f"{project}:1"),
        "slurm.account": ("sbatch", "$SBATCH_ACCOUNT"),
        "slurm.partition": ("ours", "$MONARCH_HPC_SLURM__PARTITION"),
        "slurm.constraint": ("flag", "command line"),
    }
    for key, (value, origin) in expected.items():
        assert getattr(slurm, key.partition(".")[2]) == value
        assert loaded.origin(key).startswith(origin), key


def test_flags_of_ours_are_merged_one_by_one_and_can_be_dropped(home: Path) -> None:
    user = write_user(home, "slurm:\n  job_flags:\n    exclusive: null\n    mem: 0\n  extra: ['--comment=a b']\n")
    environ = {"MONARCH_HPC_SLURM__JOB_FLAGS": "{no-requeue: false, mem: 4G}"}
    loaded = load(home, environ)
    assert loaded.config.slurm.job_flags == {
        "no-kill": True,
        "no-requeue": False,
        "exclusive": None,
        "mem": "4G",
    }
    assert loaded.config.slurm.extra == ("--comment=a b",)
    assert loaded.origin("slurm.job_flags.exclusive") == f"{user}:3"
    assert loaded.origin("slurm.job_flags.mem") == "$MONARCH_HPC_SLURM__JOB_FLAGS"


def test_a_name_in_a_mapping_may_have_dots(home: Path) -> None:
    write_user(home, "limits:\n  running: {gpu.long: 2, slurm.qos: 3}\n  submitted: {}\n")
    limits = load(home).config.limits
    assert limits.running == {"gpu.long": 2, "slurm.qos": 3}
    assert limits.submitted == {}


def test_texts_stay_as_written(home: Path) -> None:
    write_user(home, "slurm: {account: 0123, qos: yes, partition: 'null', job_flags: {nodes: 010, time: 1:30}}\n")
    slurm = load(home).config.slurm
    assert (slurm.account, slurm.qos, slurm.partition) == ("0123", "yes", "null")
    assert (slurm.job_flags["nodes"], slurm.job_flags["time"]) == ("010", "1:30")


def test_sizes_may_have_units(home: Path) -> None:
    write_user(home, "transport: {max_frame_bytes: 64MiB, send_queue_bytes: 4096}\n")
    transport = load(home, {"MONARCH_HPC_TRANSPORT__SEND_QUEUE_BYTES": "1M"}).config.transport
    assert (transport.max_frame_bytes, transport.send_queue_bytes) == (64 << 20, 1 << 20)


def test_a_section_in_a_section_is_read_like_any_other(home: Path) -> None:
    user = write_user(home, "fabric:\n  interfaces:\n    login: [eth0]\n    compute: ['ib*', hsn0]\n")
    loaded = load(home, {"MONARCH_HPC_FABRIC__INTERFACES__LOGIN": "[eth1, eth2]"})
    assert loaded.config.fabric.interfaces == InterfacesConfig(login=("eth1", "eth2"), compute=("ib*", "hsn0"))
    assert loaded.origin("fabric.interfaces.compute") == f"{user}:4"
    assert loaded.origin("fabric.interfaces.login") == "$MONARCH_HPC_FABRIC__INTERFACES__LOGIN"
    write_user(home, "fabric:\n  interfaces:\n    # login: [eth0]\n")
    assert load(home).config.fabric.interfaces.login == ()


def test_a_trusted_network_may_carry_ucx_over_tcp(home: Path) -> None:
    write_user(
        home, "fabric: {trusted: true, order: [ucx, tcp]}\nucx: {transports: 'tcp,self', port_range: 31000-31999}\n"
    )
    config = load(home).config
    assert config.fabric.order == ("ucx", "tcp")
    assert (config.ucx.transports, config.ucx.port_range) == ("tcp,self", "31000-31999")


def test_a_library_may_be_named_by_what_its_module_sets(home: Path) -> None:
    write_user(home, "ucx: {library: $EBROOTUCX/lib/libucp.so.0}\n")
    environ = {"EBROOTUCX": "/apps/ucx/1.18"}
    assert load(home, environ).config.ucx.library == Path("/apps/ucx/1.18/lib/libucp.so.0")
    assert load(home, {**environ, "MONARCH_HPC_UCX__LIBRARY": ""}).config.ucx.library is None


def test_a_section_without_keys_and_an_empty_file_say_nothing(home: Path) -> None:
    write_user(home, "slurm:\n  # partition: debug\n")
    assert load(home).config == load_config({"HOME": str(home)}, Path("/"), "h", None, {}).config
    write_user(home, "")
    assert load(home).config.slurm.partition is None


def test_an_empty_variable_unsets_what_may_be_unset(home: Path) -> None:
    write_user(home, "slurm: {partition: debug}\n")
    assert load(home, {"MONARCH_HPC_SLURM__PARTITION": ""}).config.slurm.partition is None


def test_variables_of_the_package_that_are_no_keys_are_left_alone(home: Path) -> None:
    load(home, {"MONARCH_HPC_RUN": "0123abcd", "MONARCH_HPC_DIRECTORY": "/x"})


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("slurm:\n  partiton: x\n", 2, r"unknown key 'slurm.partiton'; did you mean slurm.partition\?"),
        ("slurm:\n  zzz: x\n", 2, "known keys of slurm: allocate_by, partition,"),
        ("\nslrum: {}\n", 2, "unknown key 'slrum'"),
        ("nothing: 1\n", 1, "known: agent, fabric,"),
        ("slurm:\n  time_min: soon\n", 2, "slurm.time_min = 'soon': must be a whole number"),
        ("slurm:\n  time_min: 1.5\n", 2, "must be a whole number"),
        ("slurm:\n  time_min: true\n", 2, "must be a whole number"),
        ("slurm:\n  poll_min_s: -1\n", 2, "must be a number, 0 or more"),
        ("slurm:\n  poll_min_s: .inf\n", 2, "must be a number, 0 or more"),
        ("slurm:\n  gpus_form: gpu\n", 2, "must be one of gpus-per-node, gres, none"),
        ("slurm:\n  extra: --x\n", 2, "must be a list of strings"),
        ("slurm:\n  extra: [[a]]\n", 2, "must be a list of strings"),
        ("slurm:\n  job_flags: [a]\n", 2, "must be a mapping of flag names"),
        ("agent:\n  env: [a]\n", 2, "must be a mapping of names"),
        ("agent:\n  env:\n    a-b: x\n", 3, "names of variables"),
        ("limits:\n  running:\n    debug: many\n", 3, "must be a whole number"),
        ("slurm:\n  job_flags:\n    '--mem': 0\n", 3, "without dashes"),
        ("slurm:\n  job_flags:\n    mem: [1]\n", 3, "must be a mapping of flag names"),
        ('slurm:\n  account: "a\\nb"\n', 2, "printable"),
        ("slurm:\n  account: [a]\n", 2, "must be a string"),
        ("site: null\n", 1, "must be a string"),
        ("slurm:\n  qos: a\n  qos: b\n", 3, "key 'qos' is repeated"),
        ("slurm: 3\n", 1, "slurm must be a mapping"),
        ("- a\n", 1, "must be a mapping"),
        ("slurm:\n  qos: [a\n", 3, "not valid YAML"),
        ("slurm:\n\tqos: a\n", 2, "not valid YAML"),
        ("match: {cluster: [x]}\n", 1, "only a profile in configs/sites"),
        ("transport: {max_frame_bytes: 8Q}\n", 1, "transport.max_frame_bytes = 8Q: not a size"),
        ("slurm: {qos: !!python/object/apply:os.getcwd []}\n", 1, "must be a string"),
        ("fabric: {order: [tcp, carrier-pigeon]}\n", 1, "a list of some of cma, ucx, tcp, relay, each once"),
        ("fabric: {order: [tcp, tcp]}\n", 1, "each once"),
        ("fabric: {order: [ucx, relay]}\n", 1, "lacks tcp, which introduces the other fabrics"),
        ("fabric: {order: [relay, tcp]}\n", 1, "names relay before tcp"),
        ("fabric: {trusted: maybe}\n", 1, "must be true or false"),
        ("fabric: {trusted: 1}\n", 1, "must be true or false"),
        ("fabric:\n  interfaces: [hsn0]\n", 2, "fabric.interfaces must be a mapping"),
        (
            "fabric:\n  interfaces:\n    login: [a]\n    nodes: [b]\n",
            4,
            "unknown key .fabric.interfaces.nodes.; did you mean fabric",
        ),
        ("agent: {interfaces: [hsn0]}\n", 1, "unknown key 'agent.interfaces'"),
        (
            "ucx: {transports: 'tcp,sm'}\n",
            1,
            "opens UCX over tcp, which trusts its network, while fabric.trusted is false",
        ),
        ("ucx: {transports: ^ib}\n", 1, "opens UCX over tcp"),
        ("ucx: {library: lib/libucp.so.0}\n", 1, "must be an absolute path"),
        ("ucx: {port_range: 31000}\n", 1, "must be LOW-HIGH"),
        ("ucx: {port_range: 31999-31000}\n", 1, "must be LOW-HIGH"),
        ("ucx: {port_range: 31000-99999}\n", 1, "must be LOW-HIGH"),
        ("ucx: {tcp_segment_bytes: 0}\n", 1, "must be from 1 to 524288"),
        ("ucx: {tcp_segment_bytes: 513KiB}\n", 1, "the size of the buffers in which all processes receive"),
        ("ucx: {keepalive_s: 0}\n", 1, "must be more than 0"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(home: Path, text: str, line: int, words: str) -> None:
    path = write_user(home, text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(home)
    assert caught.value.source == f"{path}:{line}"


@pytest.mark.parametrize("text", ["a: 2026-13-45\n", "checked: 2026-13-45\n", "[" * 5000, "a: &a [*a]\n", "\x00"])
def test_hostile_yaml_is_an_error_that_names_the_file(home: Path, text: str) -> None:
    path = write_user(home, text)
    with pytest.raises(ConfigError) as caught:
        load(home)
    assert caught.value.source.startswith(str(path))


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("MONARCH_HPC_SLURM__PARTITON", "x", "unknown key 'slurm.partiton'"),
        ("MONARCH_HPC_SLURM__TIME_MIN", "x", "must be a whole number"),
        ("MONARCH_HPC_SLURM__EXTRA", "[a", "is not a YAML value"),
        ("MONARCH_HPC_PROCS__GPU_VISIBLE", "some", "must be one of own-first, own, all"),
        ("MONARCH_HPC_PATHS__SHARED", "$NOWHERE/x", r"\$NOWHERE is not set"),
        ("MONARCH_HPC_PATHS__SHARED", "relative", "must be an absolute path"),
        ("MONARCH_HPC_PATHS__SHARED", "/a/../b", "must be an absolute path"),
        ("MONARCH_HPC_SITE", "nowhere", "no such profile; known: generic, alps, .*slurmlab"),
        ("MONARCH_HPC_SLURM__POLL_MIN_S", "90", "exceeds slurm.poll_max_s"),
        ("MONARCH_HPC_LIVENESS__SUSPECT_S", "20", "must be below liveness.dead_s"),
        ("MONARCH_HPC_TELEMETRY__OTLP_URL", "collector:4318", "must be like http://collector:4318"),
        ("MONARCH_HPC_TELEMETRY__OTLP_URL", "http://collector:99999", "must be like http://collector:4318"),
        ("MONARCH_HPC_LIVENESS__HEARTBEAT_S", "0", "must be more than 0"),
        ("MONARCH_HPC_LIVENESS__HEARTBEAT_S", "5", "must be below suspect_s"),
        ("MONARCH_HPC_SLURM__TIME_MIN", "0", "must be more than 0"),
        ("SBATCH_ACCOUNT", "a\nb", "printable"),
    ],
)
def test_a_mistake_in_a_variable_is_named_with_it(home: Path, variable: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(home, {variable: text})
    assert caught.value.source == f"${variable}"


def test_a_mistake_in_a_flag_is_named_as_such(home: Path) -> None:
    with pytest.raises(ConfigError, match="must be a whole number") as caught:
        load(home, flags={"slurm.time_min": "x"})
    assert caught.value.source == "command line"


def test_paths_know_home_and_variables(home: Path) -> None:
    environ = {"SCRATCH": "/scratch/alice", "MONARCH_HPC_PATHS__SHARED": "$SCRATCH/mh", "XDG_STATE_HOME": "/state"}
    paths = load(home, environ).config.paths
    assert (paths.shared, paths.state) == (Path("/scratch/alice/mh"), Path("/state/monarch-hpc"))


def test_a_relative_xdg_state_home_is_refused_not_taken_from_the_working_directory(home: Path) -> None:
    with pytest.raises(ConfigError, match="must be an absolute path"):
        load(home, {"XDG_STATE_HOME": "state"})


@pytest.mark.parametrize(
    "text",
    [
        "paths: {shared: /tmp/x}\n",
        "paths: {state: /tmp/x}\n",
        "agent: {python: /tmp/python}\n",
        "agent: {prologue: [rm -rf x]}\n",
        "procs: {preload: [evil]}\n",
        "slurm: {extra: [--wrap=evil]}\n",
        "slurm: {job_flags: {output: /home/alice/.bashrc}}\n",
        "slurm: {step_flags: {task-prolog: ./evil}}\n",
        "fabric: {trusted: true}\n",
        "ucx: {library: /tmp/libucp.so.0}\n",
        "ucx: {transports: 'sm,self'}\n",
    ],
)
def test_a_projects_file_cannot_decide_what_runs_or_where_files_go(home: Path, text: str) -> None:
    path = write_project(home, text)
    with pytest.raises(ConfigError, match="may not decide what runs as you") as caught:
        load(home, cwd=path.parent)
    assert caught.value.source == f"{path}:1"
    write_user(home, text)
    load(home)


def test_the_projects_file_is_found_above_the_working_directory_but_not_above_home(home: Path) -> None:
    write_project(home, "slurm: {qos: project}\n")
    assert load(home, cwd=home / "project" / "deep").config.slurm.qos == "project"
    (home.parent / "monarch-hpc.yaml").write_text("slurm: {qos: above}\n")
    assert load(home, cwd=home).config.slurm.qos is None
    assert load(home, cwd=home.parent).config.slurm.qos == "above"


def test_a_file_that_another_user_may_have_written_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_project(home, "slurm: {qos: project}\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="another user"):
        load(home, cwd=path.parent)
    path.chmod(0o644)
    load(home, cwd=path.parent)
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(ConfigError, match="owner 12345"):
            load(home, cwd=path.parent)


def test_a_pipe_or_a_folder_or_a_huge_file_by_that_name_does_not_hang(home: Path) -> None:
    path = home / "project" / "monarch-hpc.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(home, cwd=path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        load(home, cwd=path.parent)
    path.rmdir()
    path.write_text("#" * 70_000)
    with pytest.raises(ConfigError, match="larger than"):
        load(home, cwd=path.parent)
    path.write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(home, cwd=path.parent)


def test_a_site_is_chosen_by_hand_over_what_matches(home: Path) -> None:
    assert load(home, cluster_name="slurmlab").config.site == "slurmlab"
    loaded = load(home, {"MONARCH_HPC_SITE": "generic"}, cluster_name="slurmlab")
    assert (loaded.config.site, loaded.config.slurm.poll_min_s) == ("generic", 5.0)
    assert load(home, {"MONARCH_HPC_SITE": "slurmlab"}).config.slurm.poll_min_s == 1.0


def test_an_unknown_key_has_no_origin(home: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        load(home).origin("slurm.nothing")
