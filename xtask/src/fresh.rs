// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves the README's two commands, the wheels, the Debian package and the source distribution in new minimal Debian roots.
//!
//! - **Flow** of `demo`, `test` and other targets: what is missing? ─▶ private mount and process namespaces ─▶ debootstrap ─▶ the packages that the README names
//!   ─▶ /proc, /sys, /dev and this machine's Rust toolchain, read-only ─▶ git clone of HEAD
//!   ─▶ `make demo`, `make test` as an unprivileged user ─▶ unmount, remove
//! - **Rust** Debian's own cargo is older than the project needs, so the toolchain of this machine is mounted at /opt/rust; the
//!   crates themselves are fetched anew. Everything else in the root comes from Debian's packages.
//! - **Flow** of `wheel` and `deb`: a root without Rust ─▶ Python, or nothing ─▶ the newest of `dist/` ─▶ `tools/wheel-test` as an
//!   unprivileged user, `tools/deb-test` as root. Each has a root of its own
//! - **Flow** of `sdist`: the same with Rust and a C compiler: `tools/sdist-test` builds what it installs
//! - **Owner** mounts and processes live in namespaces of this command: they are gone when it ends, however it ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Failure;

const USER: &str = "builder";
/// Says that this process already runs in namespaces of its own.
const INSIDE: &str = "MEMLIFT_XTASK_INSIDE";
const TOOLCHAIN: &str = "/opt/rust";
/// Where this machine keeps the certificates that its network needs.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Targets to run, and the root to run them in.
pub struct Options {
    suite: String,
    mirror: String,
    keep: bool,
    targets: Vec<String>,
}

impl Options {
    /// Reads the arguments after `fresh`.
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            suite: "bookworm".into(),
            mirror: "http://deb.debian.org/debian".into(),
            keep: false,
            targets: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value =
                || rest.next().cloned().ok_or_else(|| Failure::Usage(format!("{argument} needs a value")));
            match argument.as_str() {
                "--suite" => options.suite = value()?,
                "--mirror" => options.mirror = value()?,
                "--keep" => options.keep = true,
                target if !target.starts_with('-') => options.targets.push(target.to_owned()),
                unknown => return Err(Failure::Usage(format!("no such option: {unknown}"))),
            }
        }
        if options.targets.is_empty() {
            options.targets = vec!["demo".into(), "test".into()];
        }
        Ok(options)
    }
}

/// Runs the targets in a new root; the message says how long each took.
pub fn prove(options: &Options) -> Result<String, Failure> {
    let source = repository()?;
    let toolchain = what_is_missing()?;
    if std::env::var_os(INSIDE).is_none() {
        return Err(enter_namespaces());
    }
    let mut report = Vec::new();
    let (shipped, built): (Vec<&String>, Vec<&String>) =
        options.targets.iter().partition(|target| Shipped::of(target).is_some());
    for shipped in shipped.into_iter().filter_map(|target| Shipped::of(target)) {
        report.push(prove_shipped(shipped, &source, &toolchain, options)?);
    }
    if !built.is_empty() {
        prove_built(&built, &source, &toolchain, options, &mut report)?;
    }
    Ok(format!("{} hold in a new {} root", report.join(", "), options.suite))
}

/// A thing that is installed as a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shipped {
    Wheel,
    Deb,
    /// Built where it is installed, so Rust is there.
    Sdist,
}

impl Shipped {
    fn of(target: &str) -> Option<Shipped> {
        match target {
            "wheel" => Some(Shipped::Wheel),
            "deb" => Some(Shipped::Deb),
            "sdist" => Some(Shipped::Sdist),
            _ => None,
        }
    }

    /// The packages that its root has before.
    fn packages(self) -> Vec<String> {
        let names: &[&str] = match self {
            Shipped::Wheel => &["ca-certificates", "python3", "python3-venv"],
            Shipped::Deb => &["ca-certificates", "gcc", "libc6-dev", "systemd"],
            Shipped::Sdist => &["ca-certificates", "gcc", "libc6-dev", "python3", "python3-venv"],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Files of `dist/` that it needs, by how their names begin and end; the first has to be there.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Shipped::Wheel => &[
                ("memlift-", "x86_64.whl"),
                ("memlift_lab-", "x86_64.whl"),
                ("memlift_server-", "x86_64.whl"),
            ],
            Shipped::Deb => &[("memlift_", "amd64.deb")],
            Shipped::Sdist => &[("memlift-", ".tar.gz")],
        }
    }
}

/// Installs and uses what was built, in a root that knows nothing of Rust unless it needs it.
fn prove_shipped(
    shipped: Shipped,
    source: &Path,
    toolchain: &Path,
    options: &Options,
) -> Result<String, Failure> {
    let mut files = Vec::new();
    for (start, end) in shipped.files() {
        match newest(&source.join("dist"), start, end) {
            Some(file) => files.push(file),
            None if files.is_empty() => {
                let what = format!(
                    "dist/ has no {start}*{end}: `make wheel wheel-lab wheel-server deb sdist` makes them"
                );
                return Err(Failure::Unavailable(what));
            }
            None => {}
        }
    }
    let root = Root::make(options.keep)?;
    step("a minimal Debian root", || root.bootstrap(&options.suite, &options.mirror))?;
    root.take_network_settings()?;
    root.mount((shipped == Shipped::Sdist).then_some(toolchain))?;
    let packages = shipped.packages();
    step(&format!("its packages: {}", packages.join(" ")), || root.install(&packages))?;
    let (script, user, before): (_, _, &[&str]) = match shipped {
        Shipped::Wheel => ("wheel-test", USER, &["/usr/bin/python3"]),
        Shipped::Deb => ("deb-test", "root", &[]),
        Shipped::Sdist => ("sdist-test", USER, &["/usr/bin/python3"]),
    };
    let home = format!("/home/{USER}");
    let mut arguments = vec![format!("{home}/{script}")];
    arguments.extend(before.iter().map(|one| (*one).to_owned()));
    for file in files.iter().chain([&source.join("tools").join(script)]) {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, root.path.join("home").join(USER).join(name)).map_err(broken("a file of dist/"))?;
    }
    arguments.extend(
        files.iter().map(|file| format!("{home}/{}", file.file_name().unwrap_or_default().display())),
    );
    let started = Instant::now();
    step(&arguments.join(" "), || run(root.inside(user).args(&arguments)))?;
    Ok(format!("{script} {} s", started.elapsed().as_secs()))
}

/// The file of a folder that was changed last, of those whose name begins and ends so.
fn newest(folder: &Path, start: &str, end: &str) -> Option<PathBuf> {
    let fits = |file: &PathBuf| {
        file.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(start) && name.ends_with(end))
    };
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(fits);
    files.max_by_key(|file| file.metadata().and_then(|about| about.modified()).ok())
}

/// Builds and runs targets of the Makefile from a clone.
fn prove_built(
    targets: &[&String],
    source: &Path,
    toolchain: &Path,
    options: &Options,
    report: &mut Vec<String>,
) -> Result<(), Failure> {
    let packages =
        readme_packages(&fs::read_to_string(source.join("README.md")).map_err(broken("README.md"))?)?;
    let root = Root::make(options.keep)?;
    step("a minimal Debian root", || root.bootstrap(&options.suite, &options.mirror))?;
    root.take_network_settings()?;
    root.mount(Some(toolchain))?;
    step(&format!("the packages that the README names: {}", packages.join(" ")), || root.install(&packages))?;
    root.clone_repository(source)?;
    for target in targets {
        let started = Instant::now();
        step(&format!("make {target}"), || root.make_target(target))?;
        report.push(format!("make {target} {} s", started.elapsed().as_secs()));
    }
    Ok(())
}

/// The packages of the README's `apt install` line.
fn readme_packages(readme: &str) -> Result<Vec<String>, Failure> {
    let line = readme
        .lines()
        .find_map(|line| line.trim().strip_prefix("sudo apt install "))
        .ok_or_else(|| Failure::Broken("README.md has no line that starts with `sudo apt install`".into()))?;
    let words = line.split('#').next().unwrap_or_default().split_whitespace();
    Ok(words.filter(|word| !word.starts_with('-')).map(str::to_owned).collect())
}

/// The toolchain's folder, or every tool that this machine lacks.
fn what_is_missing() -> Result<PathBuf, Failure> {
    let mut missing = Vec::new();
    if !is_root() {
        missing.push("root (it mounts and changes the root folder)".to_owned());
    }
    for (tool, package) in [
        ("debootstrap", "debootstrap"),
        ("git", "git"),
        ("chroot", "coreutils"),
        ("unshare", "util-linux"),
        ("mount", "mount"),
    ] {
        if !on_path(tool) {
            missing.push(format!("{tool} (sudo apt install {package})"));
        }
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .ok()
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
        .filter(|sysroot| sysroot.join("bin/cargo").is_file() && sysroot.join("bin/rustc").is_file());
    match sysroot {
        Some(sysroot) if missing.is_empty() => Ok(sysroot),
        Some(_) => Err(Failure::Unavailable(format!("missing: {}", missing.join(", ")))),
        None => {
            missing.push("a Rust toolchain in a folder of its own (https://rustup.rs)".into());
            Err(Failure::Unavailable(format!("missing: {}", missing.join(", "))))
        }
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1))
        == Some("0")
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).is_file())
}

fn repository() -> Result<PathBuf, Failure> {
    let output = Command::new("git")
        .args(["rev-parse", "--show-toplevel"])
        .output()
        .map_err(|error| Failure::Unavailable(format!("git does not start: {error}")))?;
    if !output.status.success() {
        return Err(Failure::Unavailable("this is not a git checkout".into()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Starts this command again in namespaces of its own: no mount and no process of it outlives it or is seen by another.
/// As the first process of its namespace it also outlives an interrupt, and so removes the root.
fn enter_namespaces() -> Failure {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::Unavailable(format!("this command does not find itself: {error}")),
    };
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Failure::Unavailable(format!("unshare does not start: {error}"))
}

/// The new root; it is unmounted and removed when dropped.
struct Root {
    path: PathBuf,
    keep: bool,
}

impl Root {
    fn make(keep: bool) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("memlift-fresh-{}", nanoseconds()));
        fs::create_dir(&path).map_err(broken("the folder of the new root"))?;
        Ok(Self { path, keep })
    }

    fn bootstrap(&self, suite: &str, mirror: &str) -> Result<(), Failure> {
        run(Command::new("debootstrap").arg("--variant=minbase").arg(suite).arg(&self.path).arg(mirror))
    }

    fn take_network_settings(&self) -> Result<(), Failure> {
        fs::copy("/etc/resolv.conf", self.path.join("etc/resolv.conf"))
            .map_err(broken("/etc/resolv.conf"))?;
        // A proxy, or an archive of a day in the past.
        for entry in fs::read_dir("/etc/apt/apt.conf.d").into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            if text
                .lines()
                .all(|line| line.is_empty() || line.starts_with("//") || line.starts_with("Acquire::"))
            {
                let target = self.path.join("etc/apt/apt.conf.d").join(entry.file_name());
                fs::copy(entry.path(), target).map_err(broken("the settings of apt"))?;
            }
        }
        // Where packages of Python come from may be said there.
        if Path::new("/etc/pip.conf").is_file() {
            fs::copy("/etc/pip.conf", self.path.join("etc/pip.conf")).map_err(broken("/etc/pip.conf"))?;
        }
        Ok(())
    }

    fn mount(&self, toolchain: Option<&Path>) -> Result<(), Failure> {
        let at = |place: &str| self.path.join(place.trim_start_matches('/'));
        for folder in toolchain.map(|_| TOOLCHAIN).into_iter().chain(["/dev/shm"]) {
            fs::create_dir_all(at(folder)).map_err(broken(folder))?;
        }
        run(Command::new("mount").args(["-t", "proc", "proc"]).arg(at("/proc")))?;
        run(Command::new("mount").args(["--rbind", "-o", "ro", "/sys"]).arg(at("/sys")))?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=1777", "tmpfs"]).arg(at("/dev/shm")))?;
        let Some(toolchain) = toolchain else { return Ok(()) };
        run(Command::new("mount").args(["--bind"]).arg(toolchain).arg(at(TOOLCHAIN)))?;
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(at(TOOLCHAIN)))
    }

    fn install(&self, packages: &[String]) -> Result<(), Failure> {
        run(self.inside("root").args(["apt-get", "update", "-q"]))?;
        run(self.inside("root").args(["apt-get", "install", "-q", "-y"]).args(packages))?;
        run(self.inside("root").args(["useradd", "--create-home", USER]))?;
        // A network that inspects TLS has its authority in the bundle of this machine.
        let bundle = Path::new("/").join(CERTIFICATES);
        if bundle.is_file() && self.path.join(CERTIFICATES).is_file() {
            fs::copy(&bundle, self.path.join(CERTIFICATES)).map_err(broken("the certificates"))?;
        }
        Ok(())
    }

    fn clone_repository(&self, source: &Path) -> Result<(), Failure> {
        let target = self.path.join("home").join(USER).join("memlift");
        run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(source).arg(target))?;
        run(self.inside("root").args(["chown", "-R", &format!("{USER}:{USER}"), &format!("/home/{USER}")]))
    }

    fn make_target(&self, target: &str) -> Result<(), Failure> {
        run(self.inside(USER).args(["make", "-C", &format!("/home/{USER}/memlift"), target]))
    }

    /// A command that will run in the root as `user`, with an environment of its own.
    fn inside(&self, user: &str) -> Command {
        let home = if user == "root" { "/root".to_owned() } else { format!("/home/{user}") };
        let mut command = Command::new("chroot");
        if user != "root" {
            command.arg(format!("--userspec={user}:{user}"));
        }
        command.arg(&self.path).args([
            "/usr/bin/env",
            "-i",
            "LANG=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ]);
        command.arg(format!("HOME={home}")).arg(format!("USER={user}"));
        command.arg(format!(
            "PATH={TOOLCHAIN}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ));
        for variable in ["SSL_CERT_FILE", "PIP_CERT", "CARGO_HTTP_CAINFO"] {
            if user != "root" {
                command.arg(format!("{variable}=/{CERTIFICATES}"));
            }
        }
        for variable in [
            "PIP_INDEX_URL",
            "PIP_TRUSTED_HOST",
            "http_proxy",
            "https_proxy",
            "no_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "NO_PROXY",
        ] {
            if let Ok(value) = std::env::var(variable) {
                command.arg(format!("{variable}={value}"));
            }
        }
        command
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for place in ["proc", "sys", "dev/shm", TOOLCHAIN.trim_start_matches('/')] {
            let _ = Command::new("umount")
                .args(["--recursive", "--lazy", "--quiet"])
                .arg(self.path.join(place))
                .stderr(Stdio::null())
                .status();
        }
        if self.keep {
            eprintln!("xtask: the root is kept: {}", self.path.display());
            return;
        }
        // Never follows into a file system that is still mounted there.
        let removed = Command::new("rm").args(["-rf", "--one-file-system"]).arg(&self.path).status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("xtask: could not remove {}: remove it by hand", self.path.display());
        }
    }
}

fn step(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    eprintln!("== {name}");
    let started = Instant::now();
    let outcome = work();
    eprintln!("== {name}: {} s", started.elapsed().as_secs());
    outcome
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Broken(format!("{status}: {shown}"))),
        Err(error) => Err(Failure::Unavailable(format!("{error}: {shown}"))),
    }
}

fn broken(what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::Broken(format!("{what}: {error}"))
}

fn nanoseconds() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_from_the_readme() {
        let readme = "Text.\n\n    sudo apt install -y git make gcc   # tools\n";
        assert_eq!(readme_packages(readme).ok(), Some(vec!["git".into(), "make".into(), "gcc".into()]));
        assert!(readme_packages("nothing").is_err());
    }

    #[test]
    fn options_are_read() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = Options::parse(&words("--suite trixie demo")).ok().expect("valid");
        assert_eq!((options.suite.as_str(), options.targets), ("trixie", vec!["demo".to_owned()]));
        assert!(Options::parse(&words("--suite")).is_err());
        assert!(Options::parse(&words("--colour")).is_err());
    }
}
