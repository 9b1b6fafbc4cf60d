//! Modules that are trained in full beside LoRA adapters, PEFT's `modules_to_save`.

use super::{Lora, endings, is_called, module_of};
use crate::models::{LanguageModel, ModelConfig};
use crate::{Error, Result};
use std::collections::HashSet;

/// A parameter and the Hugging Face module that it is a part of.
struct Candidate {
    module: String,
    parameter: String,
    obstacle: Option<Obstacle>,
}

/// A reason why a module cannot be trained in full.
#[derive(Clone, Copy)]
enum Obstacle {
    /// Its weight is a part of a larger parameter.
    Fused,
    /// It has an adapter.
    Adapted,
    /// It is a head that shares the weight of the embedding.
    Tied,
}

impl Lora {
    /// Names of the parameters of `modules_to_save`, as the model names them.
    ///
    /// # Errors
    /// If a name matches no module, or one that is part of a fused weight, has an adapter or is a tied head.
    pub(super) fn parameters_to_save(&self, model: &mut dyn LanguageModel) -> Result<HashSet<String>> {
        if self.modules_to_save.is_empty() {
            return Ok(HashSet::new());
        }
        let config = model.config().clone();
        let candidates = self.candidates(model, &config);
        for name in &self.modules_to_save {
            let mut meant = candidates.iter().filter(|candidate| is_called(name, &candidate.module)).peekable();
            let is_known = meant.peek().is_some();
            let obstacle = meant.find_map(|candidate| Some((&*candidate.module, candidate.obstacle?)));
            if !is_known || obstacle.is_some() {
                let what = describe(obstacle, &config);
                let free = candidates.iter().filter(|candidate| candidate.obstacle.is_none());
                let ends = endings(free.map(|candidate| &*candidate.module)).join(", ");
                return Err(Error::Invalid(format!("lora.modules_to_save: {name:?} is {what}; expected {ends}")));
            }
        }
        let is_meant =
            |candidate: &Candidate| self.modules_to_save.iter().any(|name| is_called(name, &candidate.module));
        Ok(candidates.into_iter().filter(is_meant).map(|candidate| candidate.parameter).collect())
    }

    /// All parameters, and a tied head.
    fn candidates(&self, model: &mut dyn LanguageModel, config: &ModelConfig) -> Vec<Candidate> {
        let (hf, table) = (config.kind.hf(), model.token_embeddings().shape().clone());
        let (mut candidates, mut adapted) = (Vec::new(), HashSet::new());
        model.visit_parameters("", &mut |name, parameter| {
            if let Some(layout) = &parameter.linear {
                let matrices = self.adapted(config, name, parameter.shape(), layout.outputs_first);
                adapted.extend(matrices.into_iter().map(|matrix| matrix.module));
            }
            let tensors = hf.tensors(config, name, parameter.shape());
            let fused = (tensors.len() > 1).then_some(Obstacle::Fused);
            candidates.extend(tensors.iter().map(|(tensor, _)| Candidate {
                module: module_of(tensor).to_string(),
                parameter: name.to_string(),
                obstacle: fused,
            }));
        });
        for candidate in candidates.iter_mut().filter(|candidate| adapted.contains(&candidate.module)) {
            candidate.obstacle = Some(Obstacle::Adapted);
        }
        if config.tie_embeddings {
            let [embedding, head] = hf.embedding_and_head();
            let tied = hf.tensors(config, head, &table).into_iter().map(|(tensor, _)| Candidate {
                module: module_of(&tensor).to_string(),
                parameter: embedding.to_string(),
                obstacle: Some(Obstacle::Tied),
            });
            candidates.extend(tied);
        }
        candidates
    }
}

/// The module that a name means, and why it cannot be trained in full.
fn describe(obstacle: Option<(&str, Obstacle)>, config: &ModelConfig) -> String {
    let Some((module, obstacle)) = obstacle else { return format!("not a module of this {}", config.kind.as_str()) };
    match obstacle {
        Obstacle::Fused => format!("{module}, whose weight is fused with those of other modules"),
        Obstacle::Adapted => format!("{module}, which has an adapter (lora.targets)"),
        Obstacle::Tied => {
            let [embedding, _] = config.kind.hf().embedding_and_head();
            format!("{module}, which is tied to the embedding (name {} to train both)", module_of(embedding))
        }
    }
}
