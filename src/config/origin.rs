//! Where a value came from.

use std::fmt;

/// The layer, and the place in it, that gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// Nobody set it, and its default follows from other values; the text says from which and how.
    Derived(&'static str),
    /// `auto`, which came to this value; the text says why.
    Settled(&'static str),
    /// A line, counted from 1, of a configuration file.
    File {
        /// The file, as the user named it.
        path: String,
        /// The line of the key.
        line: usize,
    },
    /// An environment variable, by its full name.
    Environment(String),
    /// A `--set section.key=value`.
    Set,
    /// A flag with a name of its own, such as `--steps`.
    Flag(&'static str),
}

impl Origin {
    /// Whether nobody set the value.
    pub fn is_default(&self) -> bool {
        matches!(self, Origin::Default | Origin::Derived(_))
    }

    /// The height of its layer: the higher one wins.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Origin::Default | Origin::Derived(_) | Origin::Settled(_) => 0,
            Origin::File { .. } => 1,
            Origin::Environment(_) => 2,
            Origin::Set => 3,
            Origin::Flag(_) => 4,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Derived(how) => write!(f, "default: {how}"),
            Origin::Settled(how) => write!(f, "auto: {how}"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Environment(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}
