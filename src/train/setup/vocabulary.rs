//! Changes the vocabulary of a model: embedding and head get the rows of a new tokenizer.

use crate::models::{LanguageModel, ModelConfig, build};
use crate::tensor::{DryRun, with_weights_on};
use crate::{Device, Result, Tensor};
use std::collections::{HashMap, HashSet};

/// The model with the vocabulary of `shape`. `kept` maps each new id to the old id whose rows in embedding and head it
/// keeps, if any; other rows are random, with the scale of the old ones.
///
/// # Errors
/// If there is no such model.
pub(in crate::train) fn with_vocabulary(
    mut model: Box<dyn LanguageModel>,
    shape: &ModelConfig,
    kept: &[Option<u32>],
    seed: u64,
) -> Result<Box<dyn LanguageModel>> {
    let rows = rows_of_vocabulary(shape)?;
    let mut old: HashMap<String, Tensor> = model.parameters().into_iter().collect();
    let mut new = build(shape, seed)?;
    let mut result = Ok(());
    new.visit_parameters("", &mut |name, parameter| {
        if let (Ok(()), Some(values)) = (&result, old.remove(name)) {
            result = values.to_f32().and_then(|mut values| {
                if rows.contains(name) {
                    values = with_rows(&values, parameter.to_f32()?, shape.vocab_size, kept);
                }
                parameter.write_bytes(bytemuck::cast_slice(&values))
            });
        }
    });
    result.map(|()| new)
}

/// The `random` values of a parameter with `rows` rows, scaled like the old one, with its kept rows.
fn with_rows(old: &[f32], mut random: Vec<f32>, rows: usize, kept: &[Option<u32>]) -> Vec<f32> {
    let width = random.len() / rows;
    let size = |values: &[f32]| {
        let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
        (squares / values.len().max(1) as f64).sqrt()
    };
    if size(&random) > 0.0 {
        let factor = size(old) / size(&random);
        random.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
    for (row, from) in kept.iter().enumerate().filter_map(|(row, from)| Some((row, (*from)? as usize))) {
        if let Some(values) = old.get(from * width..(from + 1) * width) {
            random[row * width..(row + 1) * width].copy_from_slice(values);
        }
    }
    random
}

/// The parameters with a row for each token: those that one token more makes longer.
fn rows_of_vocabulary(shape: &ModelConfig) -> Result<HashSet<String>> {
    let lengths = |vocab_size| -> Result<Vec<(String, usize)>> {
        let shape = ModelConfig { vocab_size, ..shape.clone() };
        let mut model = with_weights_on(Device::DryRun(DryRun::cpu()), || build(&shape, 0))?;
        Ok(model.parameters().into_iter().map(|(name, tensor)| (name, tensor.len())).collect())
    };
    let pairs = lengths(shape.vocab_size)?.into_iter().zip(lengths(shape.vocab_size + 1)?);
    Ok(pairs.filter(|((_, length), (_, more))| length != more).map(|((name, _), _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::small;

    #[test]
    fn shared_tokens_keep_their_rows_and_all_other_parameters_their_values() {
        for tie_embeddings in [true, false] {
            let shape = ModelConfig { tie_embeddings, ..small(7, 6, 2, 8) };
            let mut old = build(&shape, 1).unwrap();
            let before: HashMap<String, Vec<f32>> =
                old.parameters().into_iter().map(|(name, values)| (name, values.to_f32().unwrap())).collect();
            // As many tokens as before, of which two are the same.
            let kept = [None, Some(0), None, None, Some(6), None, None];
            let mut new = with_vocabulary(old, &shape, &kept, 2).unwrap();
            for (name, after) in new.parameters() {
                let (before, after) = (&before[&name], after.to_f32().unwrap());
                if !name.contains("wte") && !name.contains("lm_head") {
                    assert_eq!(*before, after, "{name}");
                    continue;
                }
                let row = |values: &[f32], row: usize| values[row * 8..(row + 1) * 8].to_vec();
                assert_eq!((row(&after, 1), row(&after, 4)), (row(before, 0), row(before, 6)), "{name}");
                assert!((0..7).filter(|id| kept[*id].is_none()).all(|id| row(&after, id) != row(before, id)), "{name}");
            }
        }
    }
}
