// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folder that a system sees as `/`: this machine's own, or that of an image.
//!
//! - **Flow** a path as the system writes it ─▶ [`Root::outside`] ─▶ the path at which this command finds it; [`Root::inside`] is the
//!   reverse
//! - **Rule** symbolic links below the folder are followed as the system would follow them: `/etc/x` in a link is the image's `/etc/x`
//! - **Not here** running the image: nothing of it is executed

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links followed on one path, as in Linux.
const LINKS_MAX: usize = 40;

/// The folder below which a system lies.
#[derive(Clone, Debug, Default)]
pub struct Root(Option<PathBuf>);

impl Root {
    /// Makes the root of the system below `folder`; `None` is the machine on which this command runs.
    pub fn new(folder: Option<PathBuf>) -> Root {
        Root(folder)
    }

    /// Returns true if this is the system on which this command runs.
    pub fn is_this_machine(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the path at which this command finds `path`, an absolute path in the system.
    pub fn outside(&self, path: &Path) -> PathBuf {
        let Some(root) = &self.0 else { return path.to_owned() };
        let mut waiting = Vec::new();
        push_parts(&mut waiting, path);
        let (mut at, mut depth, mut links) = (root.clone(), 0_usize, 0);
        while let Some(part) = waiting.pop() {
            if part == ".." {
                if depth > 0 {
                    at.pop();
                    depth -= 1;
                }
                continue;
            }
            let next = at.join(&part);
            match fs::read_link(&next) {
                Ok(target) if links < LINKS_MAX => {
                    links += 1;
                    if target.is_absolute() {
                        (at, depth) = (root.clone(), 0);
                    }
                    push_parts(&mut waiting, &target);
                }
                _ => {
                    at = next;
                    depth += 1;
                }
            }
        }
        at
    }

    /// Returns the path in the system of `path` on this machine; `None` if it lies outside of the root.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        let Some(root) = &self.0 else { return Some(path.to_owned()) };
        let rest = match path.strip_prefix(root) {
            Ok(rest) => rest.to_owned(),
            Err(_) => path.strip_prefix(root.canonicalize().ok()?).ok()?.to_owned(),
        };
        Some(Path::new("/").join(rest))
    }
}

/// Pushes the parts of a path on a stack, so that the first part is on top.
fn push_parts(stack: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    stack.extend(parts);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_the_system_would() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("etc/alternatives")).expect("made");
        fs::create_dir_all(at("usr/lib")).expect("made");
        symlink("/etc/alternatives/web", at("usr/lib/web")).expect("linked");
        symlink("../../../../usr/lib/real", at("etc/alternatives/web")).expect("linked");
        symlink("loop", at("usr/lib/loop")).expect("linked");
        let root = Root::new(Some(folder.path().to_owned()));
        assert_eq!(root.outside(Path::new("/usr/lib/web")), at("usr/lib/real"));
        assert_eq!(root.outside(Path::new("/../../etc/passwd")), at("etc/passwd"));
        assert_eq!(root.outside(Path::new("/usr/lib/loop")), at("usr/lib/loop"));
        assert_eq!(root.inside(&at("usr/lib/real")).as_deref(), Some(Path::new("/usr/lib/real")));
        assert_eq!(root.inside(Path::new("/usr/lib/real")), None);
        assert_eq!(Root::default().outside(Path::new("/x")), Path::new("/x"));
    }
}
