// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin enable` and `disable`: one file beside a unit, or the environment of a command; and back.
//!
//! - **Flow** enable: check finds the copies ─▶ LD_PRELOAD, OPENSSL_CONF (a merged copy), MEMLIFT_STATS ─▶ NAME.d/memlift.conf,
//!   or printed. disable: the files that enable wrote, and no others
//! - **Layout** the first line of each file is [`MARKER`] and the FNV-1a of the rest: a file without it is somebody else's, one
//!   with another sum was edited; both are refused
//! - **Order** the openssl.cnf before the file that names it, and the reverse when it is undone; each is written under
//!   another name and renamed
//! - **Not here** systemctl: what to run is said, not run. System libraries are never touched.

use std::fs;
use std::path::{Path, PathBuf};

use memlift_cli::libraries::Dropin;
use serde_json::json;

use super::copies::{self, Found};
use super::openssl_cnf;
use super::subject::Subject;
use super::unit::{DROPIN_FILE, Place, Unit};
use crate::failure::Failure;
use crate::print;

const MARKER: &str = "# memlift dropin 1 ";
/// systemd reads *.conf only, so this may lie beside it.
const OPENSSL_FILE: &str = "memlift-openssl.cnf";
const SYSTEM_OPENSSL_CNF: &str = "/etc/ssl/openssl.cnf";
/// Is there where systemd runs (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Arguments of enable.
#[derive(Debug)]
pub struct EnableArgs {
    /// Whom to attach.
    pub subject: String,
    /// Where units lie.
    pub place: Place,
    /// Print, write nothing.
    pub dry_run: bool,
    /// These, whether the search finds a use for them or not; empty: what the search finds.
    pub only: Vec<Dropin>,
    /// The openssl.cnf to start from.
    pub openssl_conf: Option<PathBuf>,
}

/// A file to write.
#[derive(Debug)]
struct Planned {
    path: PathBuf,
    text: String,
}

impl Planned {
    /// Returns the new part of the text: all of it, or the lines behind a copy.
    fn shown(&self) -> String {
        match self.text.split_once(openssl_cnf::ADDED) {
            Some((_, rest)) => format!("# … a copy of the one in force, and:{rest}"),
            None => self.text.clone(),
        }
    }
}

/// The files that enable writes.
#[derive(Debug)]
struct Plan {
    environment: Vec<(String, String)>,
    files: Vec<Planned>,
    remarks: Vec<String>,
}

/// Writes the files that attach a drop-in to the subject; with `dry_run`, only prints them.
pub fn enable(args: &EnableArgs, as_json: bool) -> Result<(), Failure> {
    let subject = Subject::find(&args.subject, &args.place)?;
    let plan = plan(&subject, args)?;
    if !args.dry_run {
        for file in &plan.files {
            refuse_foreign(&file.path)?;
        }
        for file in &plan.files {
            write(file)?;
        }
    }
    let next = next_step(&subject, &args.place);
    if as_json {
        let files: Vec<_> =
            plan.files.iter().map(|file| json!({ "path": file.path, "text": file.text })).collect();
        let environment: serde_json::Map<_, _> =
            plan.environment.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        return print::json(&json!({
            "subject": subject.name(), "kind": subject.kind(), "dry_run": args.dry_run, "environment": environment,
            "files": files, "remarks": plan.remarks, "next": next,
        }));
    }
    for remark in &plan.remarks {
        print::warn(remark);
    }
    let verb = if args.dry_run { "would write" } else { "wrote" };
    for file in &plan.files {
        match &subject {
            Subject::Unit(_) if args.dry_run => {
                print::line(&format!("{verb} {}:\n{}", file.path.display(), file.shown()))?;
            }
            Subject::Unit(_) => print::line(&format!("{verb} {}", file.path.display()))?,
            _ => print::progress(&format!("{verb} {}", file.path.display())),
        }
    }
    if let Subject::Command(path) = &subject {
        let words: Vec<String> =
            plan.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        return print::line(&format!("{} {}", words.join(" "), quoted(&path.display().to_string())));
    }
    print::line(&next)
}

fn plan(subject: &Subject, args: &EnableArgs) -> Result<Plan, Failure> {
    if let Subject::Process(pid) = subject {
        return Err(Failure::Usage(format!(
            "process {pid} runs already and takes no new libraries: name its service or its command"
        )));
    }
    let found = subject.program().map(|program| copies::of_program(&program));
    let found = found.unwrap_or_else(|| Err(format!("{} names no program", subject.name())));
    let (found, mut remarks) = match found {
        Ok(found) => (found, Vec::new()),
        Err(reason) if args.only.is_empty() => {
            return Err(Failure::Unavailable(format!(
                "{reason}; --only libz or --only openssl writes without a search"
            )));
        }
        Err(reason) => (Found::default(), vec![reason]),
    };
    let wanted: Vec<Dropin> = Dropin::ALL
        .into_iter()
        .filter(|one| {
            let used = found.copies.iter().any(|copy| copy.dropin == *one && copy.reached);
            if args.only.is_empty() { used } else { args.only.contains(one) }
        })
        .collect();
    if wanted.is_empty() {
        return Err(Failure::Unavailable(format!(
            "{} uses no libz and no OpenSSL that a drop-in reaches: memlift dropin check says what it found; --only libz or \
             --only openssl writes anyway",
            subject.name()
        )));
    }
    let unit = if let Subject::Unit(unit) = subject { Some(unit) } else { None };
    let own = |name: &str| match unit {
        Some(unit) => unit.variable(name).map(str::to_owned),
        None => std::env::var(name).ok().filter(|value| !value.is_empty()),
    };
    let (mut environment, mut files) = (Vec::new(), Vec::new());
    for one in wanted {
        let library = one.find().ok_or_else(|| Failure::Unavailable(one.advice()))?;
        remarks.extend(unit.and_then(|unit| hidden(unit, &library)));
        if one == Dropin::Libz {
            let text = library.display().to_string();
            if text.contains([' ', ':']) {
                return Err(Failure::Failed(format!(
                    "LD_PRELOAD cannot name {text}: no blank and no colon may stand in it"
                )));
            }
            let others = own("LD_PRELOAD").unwrap_or_default();
            let others =
                others.split([' ', ':']).filter(|path| !path.is_empty() && !path.ends_with(one.file()));
            let list: Vec<&str> = std::iter::once(text.as_str()).chain(others).collect();
            environment.push(("LD_PRELOAD".to_owned(), list.join(":")));
            continue;
        }
        let target = openssl_file(unit)?;
        let base = base_configuration(
            args,
            own("OPENSSL_CONF").map(PathBuf::from).filter(|path| *path != target),
            &found,
        )?;
        let merged = openssl_cnf::merge(&base.1, &library)
            .map_err(|reason| Failure::Failed(format!("{}: {reason}", base.0.display())))?;
        let text = format!(
            "# A copy of {} with one provider more; that file is not read by whoever reads this one.\n{merged}",
            base.0.display()
        );
        environment.push(("OPENSSL_CONF".to_owned(), target.display().to_string()));
        files.push(Planned { path: target, text: marked(&text) });
    }
    environment.push(("MEMLIFT_STATS".to_owned(), "1".to_owned()));
    remarks.extend(subject.program().and_then(|program| upgrade(&program, &environment)));
    if let Some(unit) = unit.filter(|_| args.place.root.is_none() && !Path::new(SYSTEMD_RUNS).is_dir()) {
        let program = unit.program.as_ref().map_or("its program".into(), |program| program.to_string_lossy());
        remarks.push(format!(
            "systemd does not run here, and nothing else reads what is written for {}: memlift dropin enable {program} prints \
             the environment instead",
            unit.name
        ));
    }
    if let Some(unit) = unit {
        let mut text = format!(
            "# Written by memlift dropin enable; memlift dropin disable {} takes it back.\n[Service]\n",
            unit.name
        );
        for (name, value) in &environment {
            text += &format!(
                "Environment=\"{name}={}\"\n",
                value.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%")
            );
        }
        files.push(Planned { path: unit.folder.join(DROPIN_FILE), text: marked(&text) });
    }
    Ok(Plan { environment, files, remarks })
}

/// The configuration to start from: the one that was named, the one in force, the one that the program's libcrypto reads.
fn base_configuration(
    args: &EnableArgs,
    own: Option<PathBuf>,
    found: &Found,
) -> Result<(PathBuf, String), Failure> {
    let named = args.openssl_conf.clone().or(own);
    let library = found.copies.iter().find(|copy| copy.dropin == Dropin::OpenSsl && copy.reached);
    let built_in =
        library.and_then(|copy| copies::openssl_folder(&copy.path)).map(|folder| folder.join("openssl.cnf"));
    let must_exist = named.is_some();
    let path = named.or(built_in).unwrap_or_else(|| PathBuf::from(SYSTEM_OPENSSL_CNF));
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        // OpenSSL itself does without.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            Ok((path, String::new()))
        }
        Err(error) => {
            Err(Failure::Failed(format!("{}: {error}; --openssl-conf names another file", path.display())))
        }
    }
}

/// Where the merged configuration goes: beside the unit's settings, or the user's configuration.
fn openssl_file(unit: Option<&Unit>) -> Result<PathBuf, Failure> {
    if let Some(unit) = unit {
        return Ok(unit.folder.join(OPENSSL_FILE));
    }
    let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
    let folder = folder.ok_or_else(|| {
        Failure::Unavailable("set HOME or XDG_CONFIG_HOME: the merged openssl.cnf goes there".into())
    })?;
    Ok(folder.join("memlift/dropin/openssl.cnf"))
}

/// Tells how a server that replaces its own binary treats its environment.
fn upgrade(program: &Path, environment: &[(String, String)]) -> Option<String> {
    if program.file_name()? != "nginx" {
        return None;
    }
    let lines: Vec<String> = environment.iter().map(|(name, _)| format!("env {name};")).collect();
    Some(format!(
        "nginx hands on only what its configuration names when its binary is upgraded (USR2): put `{}` into the main \
         section of nginx.conf; reload needs nothing",
        lines.join(" ")
    ))
}

/// Returns the reason why a unit might not see a library; `None`: no reason is known.
fn hidden(unit: &Unit, library: &Path) -> Option<String> {
    let at_home = ["/home", "/root", "/run/user"].iter().any(|folder| library.starts_with(folder));
    let confined = unit.confinement.iter().find(|line| at_home || !line.starts_with("ProtectHome"))?;
    Some(format!(
        "{} has {confined}: it may not see {}; install the library in /usr/local/lib/memlift",
        unit.name,
        library.display()
    ))
}

fn next_step(subject: &Subject, place: &Place) -> String {
    let user = if place.user { " --user" } else { "" };
    match subject {
        Subject::Unit(unit) => {
            format!("to apply it: systemctl{user} daemon-reload && systemctl{user} restart {}", unit.name)
        }
        _ => "start the command with this environment".to_owned(),
    }
}

fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:+=,@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Returns the FNV-1a hash, by which a file that enable wrote is known to be unchanged.
fn sum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn marked(text: &str) -> String {
    format!("{MARKER}{:016x}\n{text}", sum(text))
}

/// State of a file at a place of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Nobodys,
    Ours,
    Edited,
    Foreign,
}

fn whose(path: &Path) -> Result<Whose, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Whose::Nobodys),
        Err(error) => return Err(Failure::Failed(format!("{}: {error}", path.display()))),
    };
    let Some((first, rest)) = text.split_once('\n') else { return Ok(Whose::Foreign) };
    Ok(match first.strip_prefix(MARKER) {
        None => Whose::Foreign,
        Some(stated) if u64::from_str_radix(stated, 16) == Ok(sum(rest)) => Whose::Ours,
        Some(_) => Whose::Edited,
    })
}

fn refuse_foreign(path: &Path) -> Result<Whose, Failure> {
    let why = match whose(path)? {
        Whose::Foreign => "was not written by memlift",
        Whose::Edited => "was edited since memlift wrote it",
        whose => return Ok(whose),
    };
    Err(Failure::Failed(format!("{} {why}: it stays as it is; move it away first", path.display())))
}

fn write(file: &Planned) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let root = if error.kind() == std::io::ErrorKind::PermissionDenied {
            "; units of the system need root (sudo)"
        } else {
            ""
        };
        Failure::Failed(format!("{}: {error}{root}", file.path.display()))
    };
    let folder = file.path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(failed)?;
    let partial = folder.join(format!(".memlift-{}.partial", std::process::id()));
    let mut opened = fs::OpenOptions::new().write(true).create_new(true).open(&partial).map_err(failed)?;
    let written = std::io::Write::write_all(&mut opened, file.text.as_bytes());
    written.inspect_err(|_| drop(fs::remove_file(&partial))).map_err(failed)?;
    fs::rename(&partial, &file.path).map_err(|error| {
        let _ = fs::remove_file(&partial);
        failed(error)
    })
}

/// Takes back what enable wrote.
pub fn disable(subject: &str, place: &Place, dry_run: bool, as_json: bool) -> Result<(), Failure> {
    let subject = match place.find(subject)? {
        Some(unit) => Subject::Unit(unit),
        None => Subject::find(subject, place)?,
    };
    let (unit, paths) = match &subject {
        Subject::Unit(unit) => {
            (Some(unit), vec![unit.folder.join(DROPIN_FILE), unit.folder.join(OPENSSL_FILE)])
        }
        Subject::Command(_) => (None, vec![openssl_file(None)?]),
        Subject::Process(pid) => {
            return Err(Failure::Usage(format!(
                "nothing was written for process {pid}: name its service or its command"
            )));
        }
    };
    let mut ours = Vec::new();
    for path in paths {
        if refuse_foreign(&path)? == Whose::Ours {
            ours.push(path);
        }
    }
    if !dry_run {
        for path in &ours {
            fs::remove_file(path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        }
        if let Some(unit) = unit {
            // Only if it is empty: whatever else lies there is not ours.
            let _ = fs::remove_dir(&unit.folder);
        }
    }
    let next = match unit {
        Some(_) if !ours.is_empty() => next_step(&subject, place),
        Some(_) => format!("{} was not enabled: nothing to undo", subject.name()),
        None => "start the command without LD_PRELOAD, OPENSSL_CONF and MEMLIFT_STATS".to_owned(),
    };
    if as_json {
        return print::json(
            &json!({ "subject": subject.name(), "dry_run": dry_run, "removed": ours, "next": next }),
        );
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    for path in &ours {
        print::line(&format!("{verb} {}", path.display()))?;
    }
    print::line(&next)
}
