//! How tokens are chosen and where a text ends: the flags of commands that write text, over what the model's run says.

use super::{at_least_one, output};
use crate::config::GenerateConfig;
use crate::data::Tokenizer;
use crate::generate::Sampling;
use crate::train::generates_with;
use anyhow::{Result, bail};
use std::path::Path;

#[derive(clap::Args)]
pub struct SamplingFlags {
    /// Generate at most this many tokens [default: the run's, 200]
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one)]
    max_tokens: Option<usize>,
    /// Divides the logits: 0 takes the likeliest token, 1 samples the model's distribution [default: the run's, 0.8]
    #[arg(long, short, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Sample from the K likeliest tokens; 0 for all [default: the run's, 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the likeliest tokens whose probabilities add up to P; 1 for all [default: the run's, 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Sample from tokens with at least P times the probability of the likeliest; 0 for all [default: the run's, 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Above 1, tokens that are already in the text become less likely [default: the run's, 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// Stop before this string; may be repeated [default: the run's, none]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Add to the logit of a token, by number or text: 13=-5, the=2, -inf for never; may be repeated
    #[arg(long, value_name = "TOKEN=BIAS", allow_hyphen_values = true)]
    logit_bias: Vec<String>,
    /// Seed: the same one repeats the text [default: the run's, 1337]
    #[arg(long)]
    seed: Option<u64>,
}

impl SamplingFlags {
    /// What they say over the `[generate]` of the run that made the model in `folder`, or else over these defaults.
    pub fn over_run(
        &self,
        folder: &Path,
        defaults: GenerateConfig,
        tokenizer: &Tokenizer,
    ) -> Result<(GenerateConfig, Sampling)> {
        let of_run = generates_with(folder).unwrap_or_else(|error| {
            output::note(format_args!("warning: the run's [generate] is not used: {error}"));
            None
        });
        let settings = self.over(of_run.unwrap_or(defaults))?;
        let mut sampling = Sampling::of(&settings, tokenizer.vocab_size());
        let biases = self.logit_bias.iter().map(|given| logit_bias(given, tokenizer));
        sampling.logit_bias = biases.collect::<Result<_>>()?;
        // Refused here, before anything is computed.
        sampling.check()?;
        Ok((settings, sampling))
    }

    fn over(&self, defaults: GenerateConfig) -> Result<GenerateConfig> {
        if self.stop.iter().any(String::is_empty) {
            bail!("--stop: an empty text ends every text at once; leave it out");
        }
        Ok(GenerateConfig {
            max_new_tokens: self.max_tokens.unwrap_or(defaults.max_new_tokens),
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            stop: if self.stop.is_empty() { defaults.stop } else { self.stop.clone() },
            seed: self.seed.unwrap_or(defaults.seed),
            prompt: defaults.prompt,
        })
    }
}

/// `TOKEN=BIAS`: a token by its number or its text, which may be in quotes, and what is added to its logit.
fn logit_bias(given: &str, tokenizer: &Tokenizer) -> Result<(u32, f32)> {
    let Some((token, bias)) = given.rsplit_once('=') else {
        bail!("--logit-bias {given}: expected TOKEN=BIAS, as in 13=-5 or \"the=2\"");
    };
    let Ok(bias) = bias.trim().parse::<f32>() else {
        bail!("--logit-bias {given}: {bias:?} is not a number; -inf excludes the token");
    };
    if let Ok(id) = token.parse() {
        return Ok((id, bias));
    }
    let text = token.strip_prefix('"').and_then(|token| token.strip_suffix('"')).unwrap_or(token);
    match tokenizer.encode(text)?[..] {
        [id] => Ok((id, bias)),
        ref ids => bail!("--logit-bias {given}: {text:?} is {} tokens ({ids:?}), set a bias for each id", ids.len()),
    }
}

/// What was computed and how fast: the prompt's tokens too are in the time.
pub fn speed(prompt_tokens: usize, new_tokens: usize, seconds: f64) -> serde_json::Value {
    serde_json::json!({
        "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "seconds": seconds,
        "tokens_per_s": new_tokens as f64 / seconds.max(1e-9),
    })
}
