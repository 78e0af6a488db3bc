"""A Slurm of one machine on loopback, for as long as it is needed: `with Slurm() as environment: srun ...`.

Debian's munge and slurm-wlm, in a folder of its own with ports and a key of its own; nothing of the system's Slurm is
touched. As root, because slurmd wants it.
"""
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

NEEDED = ["munged", "slurmctld", "slurmd", "srun", "sinfo"]


def missing():
    """What keeps Slurm from being started, or None."""
    if os.geteuid() != 0:
        return "slurmd wants root"
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    for name in NEEDED:
        if not shutil.which(name, path=path):
            return f"{name} is not installed"
    return None


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    def __init__(self, cpus=8):
        self.cpus = cpus
        self.folder = tempfile.mkdtemp(prefix="slurm.")
        os.chmod(self.folder, 0o755)
        self.daemons = []

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def __enter__(self):
        try:
            self.start()
            return dict(os.environ, SLURM_CONF=self.path("slurm.conf"), PATH=os.environ["PATH"] + ":/usr/sbin")
        except BaseException:
            self.__exit__()
            raise

    def daemon(self, *command):
        log = open(self.path(os.path.basename(command[0]) + ".out"), "w")
        environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"), PATH=os.environ["PATH"] + ":/usr/sbin")
        self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))

    def start(self):
        key, munge_socket = self.path("munge.key"), self.path("munge.socket")
        with open(key, "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(key, 0o600)
        self.daemon("/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge_socket}",
                    f"--pid-file={self.path('munged.pid')}", f"--log-file={self.path('munged.log')}",
                    f"--seed-file={self.path('munged.seed')}", "--num-threads=2")
        controller, node = free_ports(2)
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            os.mkdir(self.path(name))
        with open(self.path("slurm.conf"), "w") as file:
            file.write(f"""ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={self.path('state')}
SlurmdSpoolDir={self.path('spool')}
SlurmctldPidFile={self.path('slurmctld.pid')}
SlurmdPidFile={self.path('slurmd.pid')}
SlurmctldLogFile={self.path('slurmctld.log')}
SlurmdLogFile={self.path('slurmd.log')}
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
        self.daemon("/usr/sbin/slurmctld", "-D", "-i")
        self.daemon("/usr/sbin/slurmd", "-D")
        deadline = time.monotonic() + 60
        environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"))
        while time.monotonic() < deadline:
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True).stdout.strip()
            if state in ("idle", "mixed", "allocated"):
                return
            time.sleep(0.2)
        raise RuntimeError(f"Slurm does not start: {state}\n{self.logs()}")

    def logs(self):
        text = ""
        for name in ("munged.out", "munged.log", "slurmctld.log", "slurmd.log"):
            if os.path.exists(self.path(name)):
                text += f"--- {name}\n" + open(self.path(name), errors="replace").read()[-2000:]
        return text

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
