//! Where a path really leads. Links are followed by hand, also through parts that do not exist
//! yet, so that `link-to-home/new-file` is judged by where the file would be written.
//!
//! Invariant: `Place::Workspace` means that the resolved path has the resolved workspace as its
//! first components. Text comparison of unresolved paths decides nothing.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::clean::for_terminal_line;
use crate::limits::LINKS_MAX;

/// A path whose links are all followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub path: PathBuf,
    /// Relative to the workspace where it lies inside, with control characters visible.
    pub shown: String,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Workspace,
    /// Inside the workspace, in a directory whose contents git executes or obeys.
    GitInternals,
    /// Where sandboxed commands put temporary files.
    Temporary,
    /// Readable by sandboxed commands anyway: the system and its toolchains.
    Readable,
    Outside,
}

/// What a tool wants of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Change,
}

/// How far a call may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Where no question was needed.
    Workspace,
    /// Anywhere: a person, or a standing yes, allowed it.
    Anywhere,
}

impl Place {
    /// Whether a path here leads beyond what a sandboxed command may touch.
    pub fn is_beyond(self, access: Access) -> bool {
        match (self, access) {
            (Place::Workspace | Place::Temporary, _) => false,
            (Place::GitInternals | Place::Readable, access) => access == Access::Change,
            (Place::Outside, _) => true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("the path is empty; give one relative to the workspace")]
    Empty,
    #[error("the path holds a NUL or a line break")]
    BadCharacter,
    #[error("`{0}`: more than {LINKS_MAX} symbolic links; they form a loop")]
    Loop(String),
    #[error("`{0}` leads out of the workspace by now; call again to have it judged again")]
    Moved(String),
    #[error("`{0}`: {1}")]
    Io(String, io::Error),
}

/// Resolves what a model wrote against the directories that matter.
#[derive(Clone, Debug)]
pub struct Resolver {
    workspace: PathBuf,
    home: Option<PathBuf>,
    readable: Vec<PathBuf>,
    temporary: Option<Temporary>,
}

/// The directory for temporary files of commands.
#[derive(Clone, Debug)]
pub struct Temporary {
    pub path: PathBuf,
    /// Commands see it as `/tmp` too, so that is what the model means by it.
    pub is_tmp: bool,
}

impl Resolver {
    /// `readable` are the roots that sandboxed commands may read. Those of the kernel's own file systems are
    /// for commands alone: the tools read in this process, and `/proc/self/environ` would be its own.
    pub fn new(
        workspace: &Path,
        home: Option<&Path>,
        readable: &[PathBuf],
        temporary: Option<Temporary>,
    ) -> io::Result<Resolver> {
        let mut roots: Vec<PathBuf> = readable
            .iter()
            .filter_map(|p| p.canonicalize().ok())
            .filter(|p| !p.starts_with("/proc") && !p.starts_with("/sys"))
            .collect();
        roots.sort();
        roots.dedup();
        Ok(Resolver {
            workspace: workspace.canonicalize()?,
            home: home.map(Path::to_owned),
            readable: roots,
            temporary: match temporary {
                Some(t) => Some(Temporary {
                    path: t.path.canonicalize()?,
                    ..t
                }),
                None => None,
            },
        })
    }

    /// The workspace, resolved.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    pub fn resolve(&self, given: &str) -> Result<Resolved, PathError> {
        if given.is_empty() {
            return Err(PathError::Empty);
        }
        if given.contains(['\0', '\n', '\r']) {
            return Err(PathError::BadCharacter);
        }
        let expanded = match (given.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(given),
        };
        let expanded = match (&self.temporary, expanded.strip_prefix("/tmp")) {
            (Some(Temporary { path, is_tmp: true }), Ok(rest)) => path.join(rest),
            _ => expanded,
        };
        let path = follow(&self.workspace.join(expanded), given)?;
        Ok(Resolved {
            shown: self.shown(&path),
            place: self.place(&path),
            path,
        })
    }

    /// As `resolve`, for a call that was approved: a link that was put in the way since then leads
    /// nowhere that was not allowed.
    pub fn resolve_within(
        &self,
        given: &str,
        access: Access,
        reach: Reach,
    ) -> Result<Resolved, PathError> {
        let resolved = self.resolve(given)?;
        if reach == Reach::Workspace && resolved.place.is_beyond(access) {
            return Err(PathError::Moved(for_terminal_line(given)));
        }
        Ok(resolved)
    }

    /// A resolved path as the model and the person see it.
    pub fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(&self.workspace) {
            Ok(inside) if inside.as_os_str().is_empty() => ".".to_owned(),
            Ok(inside) => for_terminal_line(&inside.to_string_lossy()),
            Err(_) => for_terminal_line(&path.to_string_lossy()),
        }
    }

    fn place(&self, path: &Path) -> Place {
        if let Ok(inside) = path.strip_prefix(&self.workspace) {
            // On a file system that ignores case, `.GIT` is `.git`.
            let git = |c: Component| c.as_os_str().eq_ignore_ascii_case(".git");
            return if inside.components().any(git) {
                Place::GitInternals
            } else {
                Place::Workspace
            };
        }
        if self
            .temporary
            .as_ref()
            .is_some_and(|t| path.starts_with(&t.path))
        {
            return Place::Temporary;
        }
        if self.readable.iter().any(|root| path.starts_with(root)) {
            return Place::Readable;
        }
        Place::Outside
    }
}

/// Follows every link of an absolute path; the last parts need not exist.
fn follow(path: &Path, given: &str) -> Result<PathBuf, PathError> {
    let mut rest: VecDeque<OsString> = parts(path);
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            resolved.pop();
            continue;
        }
        resolved.push(&part);
        let meta = match resolved.symlink_metadata() {
            Ok(meta) => meta,
            // What does not exist has no links to follow. `a file/part` is reported when used.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            Err(error) => return Err(PathError::Io(for_terminal_line(given), error)),
        };
        if !meta.is_symlink() {
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(PathError::Loop(for_terminal_line(given)));
        }
        let target = resolved
            .read_link()
            .map_err(|error| PathError::Io(for_terminal_line(given), error))?;
        resolved.pop();
        if target.is_absolute() {
            resolved = PathBuf::from("/");
        }
        let mut before = parts(&target);
        before.append(&mut rest);
        rest = before;
    }
    Ok(resolved)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A link inside the workspace led out of it, and a check of the text alone let a write through.
    #[test]
    fn places_are_judged_after_following_links() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let root = dir.path().canonicalize().unwrap();
        let work = root.join("project");
        fs::create_dir_all(work.join("src")).unwrap();
        fs::create_dir_all(work.join(".git/hooks")).unwrap();
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::create_dir_all(root.join("project-other")).unwrap();
        fs::write(root.join("secret"), "s").unwrap();
        symlink("..", work.join("up")).unwrap();
        symlink("up/secret", work.join("two-steps")).unwrap();
        symlink(root.join("not-yet"), work.join("dangling")).unwrap();
        symlink("src", work.join("inside")).unwrap();
        symlink("loop", work.join("loop")).unwrap();
        fs::create_dir_all(root.join("temporary")).unwrap();
        let temporary = Temporary {
            path: root.join("temporary"),
            is_tmp: true,
        };
        let resolver =
            Resolver::new(&work, Some(&root), &[root.join("lib")], Some(temporary)).unwrap();

        let cases = [
            ("src/new/file.rs", Place::Workspace, "src/new/file.rs"),
            (".", Place::Workspace, "."),
            ("./src/../src/a", Place::Workspace, "src/a"),
            ("inside/a", Place::Workspace, "src/a"),
            ("missing/../../secret", Place::Outside, ""),
            ("../secret", Place::Outside, ""),
            ("up/secret", Place::Outside, ""),
            ("two-steps", Place::Outside, ""),
            ("dangling", Place::Outside, ""),
            ("../project-other/a", Place::Outside, ""),
            ("inside/../../secret", Place::Outside, ""),
            ("~/secret", Place::Outside, ""),
            ("~/project/src/x", Place::Workspace, "src/x"),
            ("../lib/std.rs", Place::Readable, ""),
            ("/tmp/x", Place::Temporary, ""),
            ("/tmp/../etc", Place::Outside, ""),
            ("../temporary/x", Place::Temporary, ""),
            ("/tmpx", Place::Outside, ""),
            (".git/config", Place::GitInternals, ".git/config"),
            ("src/.GIT/hooks/x", Place::GitInternals, "src/.GIT/hooks/x"),
            (".gitignore", Place::Workspace, ".gitignore"),
            ("a\u{1b}[2J", Place::Workspace, "a␛[2J"),
        ];
        for (given, place, shown) in cases {
            let resolved = resolver.resolve(given).unwrap();
            assert_eq!(resolved.place, place, "{given}: {resolved:?}");
            if !shown.is_empty() {
                assert_eq!(resolved.shown, shown, "{given}");
            }
        }
        // Approved as a plain file, replaced by a link before it ran.
        let moved = resolver.resolve_within("up/secret", Access::Read, Reach::Workspace);
        assert!(matches!(moved, Err(PathError::Moved(_))));
        assert!(
            resolver
                .resolve_within("up/secret", Access::Change, Reach::Anywhere)
                .is_ok()
        );
        assert!(
            resolver
                .resolve_within(".git/config", Access::Read, Reach::Workspace)
                .is_ok()
        );
        assert!(
            resolver
                .resolve_within(".git/config", Access::Change, Reach::Workspace)
                .is_err()
        );
        let absolute = work.join("src/b").to_string_lossy().into_owned();
        assert_eq!(resolver.resolve(&absolute).unwrap().shown, "src/b");
        for bad in ["", "a\0b", "a\nb", "loop"] {
            assert!(resolver.resolve(bad).is_err(), "{bad:?}");
        }
    }

    /// The tools read in this process, so `/proc/self/environ` had its keys in it, unasked.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernels_file_systems_are_for_commands_alone() {
        let dir = tempfile::tempdir().unwrap();
        let roots = ["/proc", "/sys/class", "/usr"].map(PathBuf::from);
        let resolver = Resolver::new(dir.path(), None, &roots, None).unwrap();
        for path in ["/proc/self/environ", "/proc/1/environ", "/sys/class"] {
            let resolved = resolver.resolve(path).unwrap();
            assert_eq!(resolved.place, Place::Outside, "{path}");
        }
        assert_eq!(resolver.resolve("/usr/bin").unwrap().place, Place::Readable);
    }
}
