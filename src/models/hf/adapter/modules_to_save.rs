//! Tensors of `modules_to_save`, which replace those of the model.

use super::{Adapter, CONFIG, PREFIX};
use crate::models::ModelConfig;
use crate::models::hf::StoredTensor;
use crate::models::lora::module_of;
use crate::{Result, Shape};
use std::collections::HashSet;

impl Adapter {
    /// The values of a tensor of this shape that the adapter replaces, if it does. Of a cropped one, those of its first
    /// rows.
    pub(super) fn saved(
        &self,
        model: &ModelConfig,
        tensor: &str,
        shape: &Shape,
        is_cropped: bool,
        used: &mut HashSet<String>,
    ) -> Result<Option<Vec<f32>>> {
        let Some((name, stored)) = self.stored(model, tensor) else { return Ok(None) };
        let fits = match (stored.shape, &shape[..]) {
            ([there, rest @ ..], [rows, own @ ..]) if is_cropped => there >= rows && rest == own,
            (there, own) => there == own,
        };
        if !fits {
            return Err(self.wrong(format!("{name} has shape {:?}, the model implies {shape}", stored.shape)));
        }
        let mut values = self.values(&stored)?;
        values.truncate(shape.elements());
        used.insert(name);
        Ok(Some(values))
    }

    /// A tensor that replaces this one of a model, with its name.
    fn stored(&self, model: &ModelConfig, tensor: &str) -> Option<(String, StoredTensor<'_>)> {
        let short = tensor.strip_prefix(model.kind.hf().prefix()).unwrap_or(tensor);
        [tensor, short].into_iter().find_map(|tensor| {
            let name = format!("{PREFIX}{tensor}");
            self.files.tensor(&name).map(|stored| (name, stored))
        })
    }

    /// Checks that a head which is tied to the embedding is so in the adapter too, whose copy of it counts as used.
    pub(super) fn tied_head(&self, model: &ModelConfig) -> Result<HashSet<String>> {
        let (hf, shape) = (model.kind.hf(), Shape::from([model.vocab_size, model.n_embd]));
        if !model.tie_embeddings {
            return Ok(HashSet::new());
        }
        let [embedding, head] = hf.embedding_and_head().map(|name| {
            let (tensor, _) = hf.tensors(model, name, &shape).swap_remove(0);
            (self.stored(model, &tensor), tensor)
        });
        match (embedding, head) {
            ((None, _), (None, _)) => Ok(HashSet::new()),
            ((Some((_, embedding)), _), (Some((name, head)), _))
                if self.values(&embedding)? == self.values(&head)? =>
            {
                Ok(HashSet::from([name]))
            }
            ((_, embedding), (_, head)) => Err(self.wrong(format!(
                "the model in {} ties {head} to {embedding}, and the adapter does not: train it with \
                 ensure_weight_tying, or merge it by PEFT's merge_and_unload",
                self.base.display()
            ))),
        }
    }

    /// Checks that there are tensors of each of `modules_to_save`.
    pub(super) fn check_modules_to_save(&self) -> Result<()> {
        // PEFT goes by the end of names, in which `norm` is an end of `k_norm` too.
        let is_of = |name: &str, module: &str| !name.contains(".lora_") && module_of(name).ends_with(module);
        let is_missing = |module: &&String| !self.files.names().any(|name| is_of(name, module));
        match self.config.modules_to_save.iter().flatten().find(is_missing) {
            None => Ok(()),
            Some(module) => {
                Err(self.wrong(format!("has no tensor of {module}, which is in modules_to_save in {CONFIG}")))
            }
        }
    }

    /// Checks that a bias that the model does without is zero, if there is one beside this parameter.
    pub(super) fn check_zeros_beside(
        &self,
        model: &ModelConfig,
        name: &str,
        shape: &Shape,
        used: &mut HashSet<String>,
    ) -> Result<()> {
        let hf = model.kind.hf();
        let Some((bias, len)) = hf.zeros_beside(model, name, shape) else { return Ok(()) };
        for (tensor, shape) in hf.tensors(model, &bias, &[len].into()) {
            let values = self.saved(model, &tensor, &shape, false, used)?.unwrap_or_default();
            if values.iter().any(|value| *value != 0.0) {
                let base = self.base.display();
                return Err(self.wrong(format!("{PREFIX}{tensor} is not zero, and the model in {base} has no biases")));
            }
        }
        Ok(())
    }
}
