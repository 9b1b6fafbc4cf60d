//! The call that a rank announces, so that diverging ranks get an error instead of mixing up data.

use std::fmt;

use super::{Encoded, Wire};

/// One call of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub kind: Kind,
    /// Number of values or bytes of this rank.
    pub length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduceF32,
    AllReduceF16,
    /// Sums of rank 0, for all of them; see `ThreadComm::share`.
    Share,
    Broadcast,
    AllGather,
    Gather,
    Barrier,
}

impl Call {
    pub fn all_reduce(values: &Encoded) -> Call {
        let kind = match values.wire() {
            Wire::F32 => Kind::AllReduceF32,
            Wire::F16 => Kind::AllReduceF16,
        };
        Call { kind, length: values.values() }
    }

    /// The mismatch among the ranks' calls, with names by `name`; `None` if they match.
    pub fn disagreement(calls: &[Call], name: impl Fn(usize) -> String) -> Option<String> {
        let first = *calls.first()?;
        let other = calls.iter().position(|call| !call.belongs_to(first))?;
        Some(format!("the ranks are out of step: {} calls {first}, {} calls {}", name(0), name(other), calls[other]))
    }

    fn belongs_to(self, other: Call) -> bool {
        self.kind == other.kind && (self.length == other.length || !self.kind.has_one_length())
    }
}

impl Kind {
    /// Whether all ranks have to bring the same number of values.
    fn has_one_length(self) -> bool {
        matches!(self, Kind::AllReduceF32 | Kind::AllReduceF16)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.kind.has_one_length() {
            write!(f, "{} of {} values", self.kind, self.length)
        } else {
            write!(f, "{}", self.kind)
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Kind::AllReduceF32 => "all_reduce (f32)",
            Kind::AllReduceF16 => "all_reduce (f16)",
            Kind::Share => "share",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::Gather => "gather",
            Kind::Barrier => "barrier",
        })
    }
}
