//! Finds the first kernel of a pass with a non-finite output, and its layer. Reads back every output, which is slow;
//! used for diverged runs.

use crate::optim::ParameterArena;
use crate::tensor::{DType, with_hook};
use crate::units;
use crate::{Result, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// Runs a pass and describes its first non-finite weight, op output or gradient; `None` if all are finite. The pass
/// calls its argument before backward.
///
/// # Errors
/// Those of the pass.
pub(in crate::train) fn first_non_finite(
    parameters: &ParameterArena,
    pass: impl FnOnce(&dyn Fn()) -> Result<()>,
) -> Result<Option<String>> {
    let weight = damaged_weight(parameters)?;
    let search = Rc::new(RefCell::new(Search { parameters: named(parameters), ..Search::default() }));
    let (watcher, backward_begins) = (search.clone(), search.clone());
    let look = move |name, inputs: &[&Tensor], outputs: &[&Tensor]| watcher.borrow_mut().look(name, inputs, outputs);
    with_hook(Box::new(look), || pass(&move || backward_begins.borrow_mut().backward = true))?;
    let found = search.borrow_mut().found.take();
    Ok(match (weight, found) {
        (Some(weight), Some(found)) => Some(format!("{weight}; {found}")),
        (weight, found) => weight.or(found),
    })
}

/// "the weight h.0.ln_1.weight has 1 NaN among 16 values, ..." of the first that has.
fn damaged_weight(parameters: &ParameterArena) -> Result<Option<String>> {
    for entry in parameters.entries.iter().filter(|entry| entry.dtype == DType::F32) {
        let Some(value) = parameters.value_of(entry) else { continue };
        if let Some(range) = describe(&value.to_f32()?) {
            return Ok(Some(format!("the weight {} has {range}", entry.name)));
        }
    }
    Ok(None)
}

/// The name of each parameter, and all that belongs to it.
type Named = Vec<(String, Vec<Tensor>)>;

fn named(parameters: &ParameterArena) -> Named {
    parameters.entries.iter().map(|entry| (entry.name.clone(), parameters.of_entry(entry))).collect()
}

#[derive(Default)]
struct Search {
    parameters: Named,
    /// The layer whose parameters were used last.
    layer: String,
    backward: bool,
    found: Option<String>,
}

impl Search {
    fn look(&mut self, name: &str, inputs: &[&Tensor], outputs: &[&Tensor]) {
        if self.found.is_some() {
            return;
        }
        let operands = || inputs.iter().chain(outputs);
        let uses = |tensors: &[Tensor]| operands().any(|t| tensors.iter().any(|own| own.overlaps(t)));
        let own = self.parameters.iter().find(|(_, tensors)| uses(tensors));
        if let Some((name, _)) = own {
            self.layer = parent(name).to_string();
        }
        // An op without parameters belongs to the block of the layer before it: attention to `h.0.attn`.
        let layer = if own.is_some() || !self.layer.contains('.') { &self.layer } else { parent(&self.layer) };
        for output in outputs.iter().filter(|output| output.dtype() != DType::U32) {
            // An output that cannot be read is passed over.
            let Some(range) = output.to_f32().ok().and_then(|values| describe(&values)) else { continue };
            let what = if self.backward { "gradient" } else { "output" };
            let shape = output.shape();
            self.found = Some(format!(
                "the first {what} that is not finite is of op {name} in layer {layer}: {range} of {shape}"
            ));
            return;
        }
    }
}

/// `h.0.attn.c_attn.weight` -> `h.0.attn.c_attn`
fn parent(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(parent, _)| parent)
}

/// "2 NaN and 1 infinite among 64 values, the others from -0.5 to 0.25"; `None` if all are finite.
fn describe(values: &[f32]) -> Option<String> {
    let nan = values.iter().filter(|x| x.is_nan()).count();
    let infinite = values.iter().filter(|x| x.is_infinite()).count();
    if nan + infinite == 0 {
        return None;
    }
    let finite = values.iter().copied().filter(|x| x.is_finite());
    let (low, high) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let others = if low <= high {
        format!(", the others from {} to {}", units::number(low.into()), units::number(high.into()))
    } else {
        String::new()
    };
    Some(format!("{nan} NaN and {infinite} infinite among {} values{others}", values.len()))
}
