// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recipes of the guide for places where jobs run: systemd's unit, the manifest for Kubernetes, and Slurm's batch script.
//!
//! - **Method** each is checked by the program that reads it; Slurm's runs in a cluster of this machine, of Slurm's own programs. Where
//!   they are not installed, or systemd does not run, the test says so and is skipped

use crate::place;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::place::{Place, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the output of a program; `None` if this machine does not have it.
fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {:?} is not installed", command.get_program());
            None
        }
        other => Some(other.expect("it starts")),
    }
}

#[test]
fn the_unit_of_the_guide_is_one_that_systemd_takes() {
    let place = Place::new();
    let guide = std::fs::read_to_string(root().join("docs/guides/zmem.md")).expect("the guide");
    let unit = guide.split("```ini\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a unit");
    let memlift = place.memlift(&[]).get_program().to_str().expect("UTF-8").to_owned();
    let program = place.folder.path().join("train.py");
    std::fs::write(&program, "print(sum(len(bytes([i])) for i in range(7)))\n").expect("written");
    let program = program.to_str().expect("UTF-8");
    let unit = unit.replace("/usr/bin/memlift", &memlift).replace("/srv/train.py", program);
    assert!(unit.contains(&memlift) && unit.contains(program), "{unit}");
    let file = place.folder.path().join("memlift-test.service");
    std::fs::write(&file, &unit).expect("written");
    let Some(checked) = output(Command::new("systemd-analyze").arg("verify").arg(&file)) else { return };
    let said = format!("{}{}", text(&checked.stdout), text(&checked.stderr));
    assert!(checked.status.success() && !said.contains("memlift-test.service"), "{said}");
    if !Path::new("/run/systemd/system").is_dir() {
        eprintln!("skipped in part: systemd does not run here");
        return;
    }
    let library = place.library("libmemlift_preload.so");
    let mut run = Command::new("systemd-run");
    run.args(["--wait", "--pipe", "--quiet", "-p", "MemoryMax=200M", "-p", "MemorySwapMax=0"]);
    run.arg(format!("--setenv=MEMLIFT_DROPINS={}", library.parent().expect("a folder").display()));
    run.args([&memlift, "run", "--", "python3", program]);
    let ran = output(&mut run).expect("it is there");
    assert_eq!(text(&ran.stdout), "7\n", "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("peak"), "{}", text(&ran.stderr));
}

#[test]
fn the_manifest_is_one_that_kubernetes_takes() {
    let manifest = root().join("packaging/kubernetes/job.yaml");
    // kubeconform fetches its schemas; the package kubernetes-validate of PyPI brings them.
    let package = Command::new(place::python()).args(["-c", "import kubernetes_validate"]).output();
    let mut validator = if package.is_ok_and(|output| output.status.success()) {
        let mut validator = Command::new(place::python());
        validator.args(["-m", "kubernetes_validate", "--strict"]);
        validator
    } else {
        let mut validator = Command::new("kubeconform");
        validator.args(["-strict", "-summary"]);
        validator
    };
    let Some(checked) = output(validator.arg(&manifest)) else { return };
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

/// Where groups of version 1 are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Removes empty groups below one and the group itself, as far as they are not in use.
fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

/// A cluster of one machine, of Slurm's own programs; they end with this.
struct Cluster {
    folder: PathBuf,
    host: String,
    programs: Vec<Child>,
}

impl Cluster {
    /// Starts the programs. Returns `None` if one is not installed or this user may not run them.
    fn start(folder: &Path) -> Option<Cluster> {
        let programs = ["munged", "slurmctld", "slurmd", "sinfo", "sbatch", "srun"];
        let path = "/usr/sbin:/usr/bin:/sbin:/bin";
        let is_here = |name: &&str| path.split(':').any(|folder| Path::new(folder).join(name).exists());
        if let Some(missing) = programs.iter().find(|name| !is_here(name)) {
            eprintln!("skipped: {missing} is not installed");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: Slurm's programs run as root here");
            return None;
        }
        // Slurm's programs refuse a path that others may change.
        let name = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let mut key = std::fs::OpenOptions::new();
        let mut key = key.write(true).create_new(true).mode(0o600).open(name("key")).expect("a file");
        let mut random = std::fs::File::open("/dev/urandom").expect("there");
        std::io::copy(&mut std::io::Read::take(&mut random, 1024), &mut key).expect("written");
        for folder in ["state", "spool"] {
            std::fs::create_dir(name(folder)).expect("a folder");
        }
        let host = rustix::system::uname().nodename().to_str().expect("UTF-8").to_owned();
        let host = host.split('.').next().expect("a name");
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [first, second] = ports.map(|port| port.local_addr().expect("an address").port());
        // With memory groups of version 1 each step gets a group of its own; those of version 2 want systemd.
        let groups = Path::new(GROUPS).join("memory");
        let task = if std::fs::create_dir(groups.join("memlift-test-group")).is_ok() {
            std::fs::remove_dir(groups.join("memlift-test-group")).expect("removed");
            "task/cgroup"
        } else {
            "task/none"
        };
        let limits = format!("CgroupMountpoint={GROUPS}\nCgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n");
        std::fs::write(name("cgroup.conf"), limits).expect("written");
        let configuration = format!(
            "ClusterName=memlift\nSlurmctldHost={host}(127.0.0.1)\nAuthType=auth/munge\nAuthInfo=socket={socket}\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}\n\
             SlurmctldPidFile={controller}\nSlurmdPidFile={node}\nSlurmctldPort={first}\nSlurmdPort={second}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin={task}\nMpiDefault=none\nReturnToService=2\n\
             SlurmdParameters=config_overrides\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN\n\
             PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP\n",
            socket = name("munge.socket"),
            state = name("state"),
            spool = name("spool"),
            controller = name("slurmctld.pid"),
            node = name("slurmd.pid"),
        );
        std::fs::write(name("slurm.conf"), configuration).expect("written");
        let mut cluster = Cluster { folder: folder.to_owned(), host: host.to_owned(), programs: Vec::new() };
        let (key, socket, seed) = (name("key"), name("munge.socket"), name("seed"));
        let (pid, log) = (name("munge.pid"), name("munge.log"));
        cluster.run(&[
            "munged",
            "--foreground",
            "--force",
            "--key-file",
            &key,
            "--socket",
            &socket,
            "--seed-file",
            &seed,
            "--pid-file",
            &pid,
            "--log-file",
            &log,
        ]);
        cluster.until("the socket of munged", |cluster| cluster.folder.join("munge.socket").exists());
        let file = name("slurm.conf");
        cluster.run(&["slurmctld", "-D", "-f", &file]);
        cluster.run(&["slurmd", "-D", "-f", &file]);
        cluster.until("an idle node", |cluster| {
            let output = cluster.command("sinfo").args(["-h", "-o", "%T"]).output().expect("it starts");
            text(&output.stdout).trim() == "idle"
        });
        Some(cluster)
    }

    /// A program of Slurm's in this cluster.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
        command.env("SLURM_CONF", self.folder.join("slurm.conf")).current_dir(&self.folder);
        command.stdin(Stdio::null());
        command
    }

    fn run(&mut self, words: &[&str]) {
        let log = std::fs::File::create(self.folder.join(format!("{}.out", words[0]))).expect("a file");
        let mut command = self.command(words[0]);
        command.args(&words[1..]).stdout(log.try_clone().expect("a copy")).stderr(log);
        self.programs.push(command.spawn().expect("it starts"));
    }

    fn until(&self, what: &str, mut is_so: impl FnMut(&Cluster) -> bool) {
        const LIMIT: Duration = Duration::from_secs(120);
        let began = Instant::now();
        while !is_so(self) {
            if began.elapsed() > LIMIT {
                let logs = ["munged.out", "slurmctld.out", "slurmd.out"]
                    .map(|log| std::fs::read_to_string(self.folder.join(log)).unwrap_or_default());
                panic!("{what} does not come: {logs:?}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            // slurmd ends its steps when it is asked to end, not when it is killed.
            if let Some(pid) = rustix::process::Pid::from_raw(program.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = program.wait();
        }
        for controller in std::fs::read_dir(GROUPS).into_iter().flatten().flatten() {
            remove_groups(&controller.path().join(format!("slurm_{}", self.host)));
        }
    }
}

#[test]
fn the_batch_script_of_the_recipe_runs_in_a_cluster() {
    let place = Place::new();
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let Some(cluster) = Cluster::start(folder.path()) else { return };
    let recipe = std::fs::read_to_string(root().join("docs/recipes/pandas-slurm.md")).expect("the recipe");
    let script = recipe.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a script");
    assert!(script.contains("#SBATCH --mem=8G") && script.contains("srun memlift run"), "{script}");
    let memlift = place.memlift(&[]);
    let program = memlift.get_program().to_str().expect("UTF-8");
    let script = script.replace("--mem=8G", "--mem=180M").replace("srun memlift", &format!("srun {program}"));
    let heap =
        "rows = {i: (i, str(i)) for i in range(900_000)}\nprint(sum(len(row[1]) for row in rows.values()))\n";
    std::fs::write(folder.path().join("job.py"), heap).expect("written");
    let script = script.replace("python job.py", &format!("{} job.py", place::python()));
    std::fs::write(folder.path().join("job.sh"), format!("#!/bin/sh\n{script}")).expect("written");
    let mut batch = cluster.command("sbatch");
    for (name, value) in memlift.get_envs() {
        batch.env(name, value.expect("a value"));
    }
    batch.env("TMPDIR", folder.path());
    batch.args(["--wait", "--output", "job.out", "job.sh"]);
    let output = batch.output().expect("it starts");
    let said = std::fs::read_to_string(folder.path().join("job.out")).unwrap_or_default();
    assert!(output.status.success(), "{}{}\n{said}", text(&output.stdout), text(&output.stderr));
    assert!(said.lines().any(|line| line == "5288890"), "{said}");
    // 180 MiB less headroom; a little less if it is what the step's group has left.
    let budget = said.split("peak").nth(1).and_then(|rest| rest.split(" of ").nth(1)).unwrap_or_default();
    let mib = budget.split(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or_default();
    assert!((120.0..=164.0).contains(&mib), "the budget is Slurm's: {said}");
}
