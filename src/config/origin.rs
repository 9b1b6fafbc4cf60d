//! The origin of a value.

use std::fmt;

/// The layer and the place that set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not set.
    Default,
    /// Not set, with a default that depends on other values; the text names them.
    Derived(&'static str),
    /// `auto`, which is not resolved yet, by what set it.
    Auto(Box<Origin>),
    /// `auto`, resolved to this value; the text is the reason.
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
    /// A flag, such as `--steps`.
    Flag(&'static str),
}

impl Origin {
    /// Whether the value is not set.
    pub fn is_default(&self) -> bool {
        matches!(self, Origin::Default | Origin::Derived(_))
    }

    /// The height of its layer: the higher one wins.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Origin::Default | Origin::Derived(_) | Origin::Settled(_) => 0,
            Origin::Auto(origin) => origin.rank(),
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
            Origin::Auto(origin) => origin.fmt(f),
            Origin::Settled(how) => write!(f, "auto: {how}"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Environment(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}
