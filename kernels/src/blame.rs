//! Who has to act on an error. Exit codes and HTTP statuses follow from it, in one place of the harness.

/// Who can mend what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller asked for something that cannot be: a bad option, a prompt over the window.
    Caller,
    /// What was read is wrong: a damaged file, a template that does not render.
    Input,
    /// The machine lacks something: memory, disk, permission, network.
    Device,
    /// Ours. Never expected.
    Bug,
}
