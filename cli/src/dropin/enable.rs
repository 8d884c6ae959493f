// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin enable` and `disable`: writes a settings file for a unit, or prints the environment for a command; and removes it
//! again.
//!
//! - **Flow** enable: check finds the copies ─▶ LD_PRELOAD, OPENSSL_CONF (a merged copy), MEMLIFT_STATS ─▶ NAME.d/memlift.conf, or
//!   printed. disable: removes the files that enable wrote, and no others
//! - **Layout** one openssl.cnf per unit and per command; a file that somebody else wrote or edited is refused (files.rs)
//! - **Order** the openssl.cnf is written before the file that names it, and removed after it
//! - **Rule** written values are valid inside the system: paths below `--root` as the image sees them, the operator's values with
//!   their specifiers
//! - **Not here** systemctl: the commands to run are printed, not run. System libraries are never touched.

use std::fs;
use std::path::{Path, PathBuf};

use memlift_cli::libraries::Dropin;
use memlift_cli::probe::Shape;
use serde_json::json;

use super::check;
use super::copies::{self, Copy, Found, Kind};
use super::files::{FileOwner, marked, refuse_foreign, write};
use super::openssl_cnf;
use super::original::{Base, OPENSSL_FILE, openssl_file};
use super::root::Root;
use super::subject::Subject;
use super::syntax::escaped;
use super::unit::{DROPIN_FILE, Origin, Place, Unit};
use crate::failure::Failure;
use crate::print;

/// A third file, used if a file of EnvironmentFile= would override the variables that the two others set.
const ENVIRONMENT_FILE: &str = "memlift.env";
/// Folders of an image in which `make install` and packages put the drop-ins.
const LIBRARY_FOLDERS: [&str; 2] = ["/usr/local/lib/memlift", "/usr/lib/memlift"];
const SYSTEM_OPENSSL_CNF: &str = "/etc/ssl/openssl.cnf";
/// Folder that exists if systemd is running (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Arguments of enable.
#[derive(Debug)]
pub struct EnableArgs {
    /// The unit, command or process to which drop-ins are attached.
    pub subject: String,
    /// System and scope in which units are searched.
    pub place: Place,
    /// True: print and write nothing.
    pub dry_run: bool,
    /// Drop-ins to attach even if the search finds no use for them; empty: those for which it finds a use.
    pub only: Vec<Dropin>,
    /// The openssl.cnf on which the merged copy is based.
    pub openssl_conf: Option<PathBuf>,
}

/// A file that will be written.
#[derive(Debug)]
struct Planned {
    path: PathBuf,
    text: String,
}

impl Planned {
    /// Returns the new part of the text: all of it, or for a merged copy the added lines.
    fn shown(&self) -> String {
        match self.text.split_once(openssl_cnf::ADDED) {
            Some((_, rest)) => format!("# … a copy of the one in force, and:{rest}"),
            None => self.text.clone(),
        }
    }
}

/// The files that enable will write.
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
            write(&file.path, &file.text)?;
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
    let root = &args.place.root;
    let found = subject.program().map(|program| copies::of_program(&program, root));
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
    let (mut environment, mut files) = (Vec::new(), Vec::new());
    for one in wanted {
        let (library, remark) = installed(one, root)?;
        remarks.extend(remark);
        remarks.extend(unit.and_then(|unit| hidden_reason(unit, &library)));
        if one == Dropin::Libz {
            let text = library.display().to_string();
            if text.contains([' ', ':']) {
                return Err(Failure::Failed(format!(
                    "LD_PRELOAD cannot name {text}: no blank and no colon may stand in it"
                )));
            }
            let others = own_value(unit, "LD_PRELOAD")?.unwrap_or_default();
            let others =
                others.split([' ', ':']).filter(|path| !path.is_empty() && !path.ends_with(one.file()));
            let text = escaped(&text);
            let list: Vec<&str> = std::iter::once(text.as_str()).chain(others).collect();
            environment.push(("LD_PRELOAD".to_owned(), list.join(":")));
            continue;
        }
        let target = openssl_file(subject)?;
        let inside = inside(root, &target)?;
        let own = match own_value(unit, "OPENSSL_CONF")? {
            Some(value) => Some(PathBuf::from(expanded(unit, &value)?)).filter(|path| *path != inside),
            None => None,
        };
        let base = base_configuration(args, own, &found)?;
        let (serves, remark) = measured(&found, root);
        remarks.extend(remark);
        let merged = openssl_cnf::merge(&base.text, &library, root, serves)
            .map_err(|reason| Failure::Failed(format!("{}: {reason}", base.outside.display())))?;
        environment.push(("OPENSSL_CONF".to_owned(), escaped(&inside.display().to_string())));
        let text = marked(&format!("{}{merged}", base.heading()));
        files.push(Planned { path: target, text });
    }
    environment.push(("MEMLIFT_STATS".to_owned(), "1".to_owned()));
    remarks.extend(subject.program().and_then(|program| upgrade_remark(&program, &environment)));
    if let Some(unit) = unit.filter(|_| root.is_this_machine() && !Path::new(SYSTEMD_RUNS).is_dir()) {
        let program = unit.program.as_ref().map_or("its program".into(), |program| program.to_string_lossy());
        remarks.push(format!(
            "systemd does not run here, and nothing else reads what is written for {}: memlift dropin enable {program} prints \
             the environment instead",
            unit.name
        ));
    }
    if let Some(unit) = unit {
        files.extend(unit_files(unit, root, &environment)?);
    }
    let environment = environment
        .into_iter()
        .map(|(name, value)| (name, expanded(unit, &value).unwrap_or(value)))
        .collect();
    Ok(Plan { environment, files, remarks })
}

/// Measures if the provider is faster than the program's own OpenSSL here; `None` if that cannot be measured, and then the
/// provider's own rule decides.
fn measured(found: &Found, root: &Root) -> (Option<bool>, Option<String>) {
    let shared = |copy: &&Copy| copy.dropin == Dropin::OpenSsl && copy.reached && copy.kind != Kind::Static;
    // An image may run on any machine, so it is not measured on this one.
    let Some(copy) = found.copies.iter().find(shared).filter(|_| root.is_this_machine()) else {
        return (None, None);
    };
    let compared = memlift_cli::probe::compare(Dropin::OpenSsl, &copy.path, Shape::SERVER);
    let faster = compared.as_ref().ok().map(|compared| compared.ratio() >= check::HELPS);
    let said =
        format!("{}: {}", copy.path.display(), check::verdict(Dropin::OpenSsl, Shape::SERVER, &compared));
    let remark = match faster {
        Some(true) => None,
        Some(false) => Some(format!("{said}; OpenSSL's own code stays in use (serves = no)")),
        None => Some(format!("{said}; the provider's own rule decides")),
    };
    (faster, remark)
}

/// Returns the value that the subject has for a variable without memlift; specifiers are kept.
fn own_value(unit: Option<&Unit>, name: &str) -> Result<Option<String>, Failure> {
    match unit {
        Some(unit) => Ok(unit.variable(name)?.map(|(value, _)| value)),
        None => Ok(std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| escaped(&value))),
    }
}

/// Returns a value with its specifiers replaced.
fn expanded(unit: Option<&Unit>, value: &str) -> Result<String, Failure> {
    match unit {
        Some(unit) => unit.expanded(value).map_err(Failure::Unavailable),
        None => Ok(value.replace("%%", "%")),
    }
}

/// Returns the files for a unit: its settings, and an environment file if one of the operator's would override Environment=.
fn unit_files(unit: &Unit, root: &Root, environment: &[(String, String)]) -> Result<Vec<Planned>, Failure> {
    let (mut plain, mut overriding) = (String::new(), String::new());
    for (name, value) in environment {
        if unit.unsets(name) {
            return Err(Failure::Failed(format!(
                "{} has UnsetEnvironment={name}: take that out first",
                unit.name
            )));
        }
        let origin = unit.variable(name)?.map(|(_, origin)| origin);
        if let Some(Origin { file, after_ours: true, .. }) = &origin {
            return Err(Failure::Failed(format!(
                "{} sets {name} and is read after {DROPIN_FILE}: rename it so that its name sorts before that",
                file.display()
            )));
        }
        if origin.is_some_and(|origin| origin.from_environment_file) {
            let value = unit.expanded(value).map_err(Failure::Unavailable)?;
            let quoted: String = value
                .chars()
                .flat_map(|one| ['"', '\\', '$', '`'].contains(&one).then_some('\\').into_iter().chain([one]))
                .collect();
            overriding += &format!("{name}=\"{quoted}\"\n");
        } else {
            plain +=
                &format!("Environment=\"{name}={}\"\n", value.replace('\\', "\\\\").replace('"', "\\\""));
        }
    }
    let mut files = Vec::new();
    if !overriding.is_empty() {
        let path = unit.folder.join(ENVIRONMENT_FILE);
        let inside = inside(root, &path)?;
        plain += &format!(
            "# A file of EnvironmentFile= sets these too, and would override Environment=.\nEnvironmentFile={}\n",
            escaped(&inside.display().to_string())
        );
        files.push(Planned { path, text: marked(&overriding) });
    }
    let text = format!(
        "# Written by memlift dropin enable; memlift dropin disable {} takes it back.\n[Service]\n{plain}",
        unit.name
    );
    files.push(Planned { path: unit.folder.join(DROPIN_FILE), text: marked(&text) });
    Ok(files)
}

fn inside(root: &Root, path: &Path) -> Result<PathBuf, Failure> {
    root.inside(path).ok_or_else(|| Failure::Failed(format!("{} lies outside of --root", path.display())))
}

/// Returns the path of a drop-in in the subject's system, and a remark if it is not installed there yet.
fn installed(dropin: Dropin, root: &Root) -> Result<(PathBuf, Option<String>), Failure> {
    let below = LIBRARY_FOLDERS.map(|folder| Path::new(folder).join(dropin.file()));
    if !root.is_this_machine()
        && let Some(path) = below.into_iter().find(|path| root.outside(path).is_file())
    {
        return Ok((path, None));
    }
    let library = dropin.find().ok_or_else(|| Failure::Unavailable(dropin.advice()))?;
    if let Some(inside) = root.inside(&library) {
        return Ok((inside, None));
    }
    let remark = (!root.outside(&library).is_file())
        .then(|| format!("{} is not there below --root: copy it to the same place", library.display()));
    Ok((library, remark))
}

/// Returns the configuration on which the copy is based: the given one, otherwise the one in force, otherwise the one that
/// the program's libcrypto reads.
fn base_configuration(args: &EnableArgs, own: Option<PathBuf>, found: &Found) -> Result<Base, Failure> {
    let root = &args.place.root;
    // --openssl-conf is a path on this machine; it may lie below the root.
    let given = args.openssl_conf.clone().map(|path| std::path::absolute(&path).unwrap_or(path));
    let named = given.clone().map(|path| root.inside(&path).unwrap_or(path)).or(own);
    let library = found.copies.iter().find(|copy| copy.dropin == Dropin::OpenSsl && copy.reached);
    let built_in =
        library.and_then(|copy| copies::openssl_folder(&copy.path)).map(|folder| folder.join("openssl.cnf"));
    let must_exist = named.is_some();
    let path = named.or(built_in).unwrap_or_else(|| PathBuf::from(SYSTEM_OPENSSL_CNF));
    let outside = given.unwrap_or_else(|| root.outside(&path));
    match fs::read_to_string(&outside) {
        Ok(text) => Ok(Base { inside: path, outside, text }),
        // OpenSSL itself works without the file, too.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            Ok(Base { inside: path, outside, text: String::new() })
        }
        Err(error) => Err(Failure::about(
            &error,
            format!("{}: {error}; --openssl-conf names another file", outside.display()),
        )),
    }
}

/// Returns a remark about a server that replaces its own binary while it runs, and its environment then.
fn upgrade_remark(program: &Path, environment: &[(String, String)]) -> Option<String> {
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

/// Returns the reason that a unit might not see a library; `None` if no reason is known.
fn hidden_reason(unit: &Unit, library: &Path) -> Option<String> {
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

/// Removes the files that enable wrote.
pub fn disable(subject: &str, place: &Place, dry_run: bool, as_json: bool) -> Result<(), Failure> {
    let subject = match place.find(subject)? {
        Some(unit) => Subject::Unit(unit),
        None => Subject::find(subject, place)?,
    };
    let (unit, paths) = match &subject {
        Subject::Unit(unit) => (
            Some(unit),
            [DROPIN_FILE, ENVIRONMENT_FILE, OPENSSL_FILE].map(|file| unit.folder.join(file)).to_vec(),
        ),
        Subject::Command(_) => (None, vec![openssl_file(&subject)?]),
        Subject::Process(pid) => {
            return Err(Failure::Usage(format!(
                "nothing was written for process {pid}: name its service or its command"
            )));
        }
    };
    let mut ours = Vec::new();
    for path in paths {
        if refuse_foreign(&path)? == FileOwner::Ours {
            ours.push(path);
        }
    }
    if !dry_run {
        for path in &ours {
            fs::remove_file(path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        }
        if let Some(unit) = unit {
            // Succeeds only if the folder is empty: other files in it are not ours.
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
