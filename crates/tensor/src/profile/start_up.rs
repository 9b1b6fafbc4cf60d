//! Start-up time: from the start of a command to its first completed step.

use super::{Phase, WallTime};
use serde::Serialize;
use std::fmt;

/// The time to the first completed step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StartUp {
    /// By phase; the training phase is the first step.
    pub wall: WallTime,
    /// Concurrent precompilation for the GPU; `None` on the CPU.
    pub ahead: Option<Ahead>,
}

/// Precompilation before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ahead {
    /// Seconds to record the kernels of a step.
    pub planning: f64,
    /// Seconds to compile them, on all cores.
    pub compiling: f64,
    /// Number of shader variants compiled.
    pub variants: usize,
}

/// "first step after 3.20 s: device 0.45 s, autotuning 1.40 s, text and tokens 0.80 s, model 0.20 s, first step 0.30 s,
/// unaccounted 0.05 s; beside that planning 0.10 s, compiling 34 shaders 1.90 s", in the order of time.
impl fmt::Display for StartUp {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "first step after {:.2} s", self.wall.total)?;
        let took_time = self.wall.phases.iter().filter(|(_, seconds)| *seconds >= 0.005);
        for (i, (phase, seconds)) in took_time.enumerate() {
            let name = if *phase == Phase::Training { "first step" } else { phase.name() };
            write!(f, "{} {name} {seconds:.2} s", if i == 0 { ":" } else { "," })?;
        }
        match &self.ahead {
            None => Ok(()),
            Some(Ahead { planning, compiling, variants }) => {
                write!(f, "; beside that planning {planning:.2} s, compiling {variants} shaders {compiling:.2} s")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_in_the_order_of_time_and_what_ran_beside_them_stands_apart() {
        let phases = Phase::ALL.map(|phase| match phase {
            Phase::Device => (phase, 0.5),
            Phase::Text => (phase, 1.0),
            Phase::Training => (phase, 0.25),
            _ => (phase, 0.0),
        });
        let start_up = StartUp { wall: WallTime { total: 1.75, phases }, ahead: None };
        let alone = "first step after 1.75 s: device 0.50 s, text and tokens 1.00 s, first step 0.25 s";
        assert_eq!(start_up.to_string(), alone);
        let ahead = Some(Ahead { planning: 0.1, compiling: 2.0, variants: 34 });
        let beside = "; beside that planning 0.10 s, compiling 34 shaders 2.00 s";
        assert_eq!(StartUp { ahead, ..start_up }.to_string(), format!("{alone}{beside}"));
    }
}
