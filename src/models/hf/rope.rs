//! Rotary positions as `config.json` describes them: `rope_theta` and `rope_scaling` up to transformers 4, both in
//! `rope_parameters` since 5.

use crate::models::LlamaConfig;
use crate::nn::RopeScaling;
use serde_json::{Map, Value, json};

/// transformers' default.
const THETA: f64 = 10_000.0;
/// The keys that are read.
const KNOWN: [&str; 7] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
];

/// Theta and scaling of rotary positions.
pub fn write_rope(l: &LlamaConfig) -> Value {
    match l.rope_scaling {
        None => json!({ "rope_type": "default", "rope_theta": l.rope_theta }),
        Some(RopeScaling::Linear { factor }) => {
            json!({ "rope_type": "linear", "factor": factor, "rope_theta": l.rope_theta })
        }
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_block_size }) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_block_size,
            "rope_theta": l.rope_theta,
        }),
    }
}

/// Theta and scaling. `theta` is the top-level key, and either of the other two may also hold one.
///
/// # Errors
/// If a key has an invalid or unsupported value, or contradicts another.
pub fn read_rope(
    theta: Option<f64>,
    scaling: Option<&Map<String, Value>>,
    parameters: Option<&Map<String, Value>>,
) -> Result<(f64, Option<RopeScaling>), String> {
    let older = scaling.map(|given| read_keys("rope_scaling", given)).transpose()?;
    let newer = parameters.map(|given| read_keys("rope_parameters", given)).transpose()?;
    if let (Some((_, older)), Some((_, newer))) = (older, newer)
        && older != newer
    {
        return Err("rope_scaling and rope_parameters describe different positions".into());
    }
    let (its, scaling) = newer.or(older).unwrap_or_default();
    let theta = its.or(theta).unwrap_or(THETA);
    if !(theta > 0.0 && theta.is_finite()) {
        return Err(format!("rope_theta is {theta}; expected a number above 0"));
    }
    Ok((theta, scaling))
}

/// Theta, if it is there, and the scaling.
fn read_keys(key: &str, given: &Map<String, Value>) -> Result<(Option<f64>, Option<RopeScaling>), String> {
    let whole = |name: &str, value: &Value| name == "partial_rotary_factor" && value.as_f64() == Some(1.0);
    let unknown =
        |(name, value): &(&String, &Value)| !(KNOWN.contains(&name.as_str()) || value.is_null() || whole(name, value));
    if let Some((name, value)) = given.iter().find(unknown) {
        return Err(format!("{key}.{name} is {value}; rustyflow computes positions without it"));
    }
    let number = |name: &str| match given.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| *number > 0.0);
            number.map(Some).ok_or_else(|| format!("{key}.{name} is {value}, no number above 0"))
        }
    };
    let needed = |name: &str| number(name)?.ok_or_else(|| format!("{key}.{name} is missing, a number above 0"));
    let kind = match given.get("rope_type").or(given.get("type")) {
        None | Some(Value::Null) => "default",
        Some(Value::String(kind)) => kind,
        Some(other) => return Err(format!("{key}.rope_type is {other}; expected the name of a type")),
    };
    let scaling = match kind {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: needed("factor")? }),
        "llama3" => {
            let (low_freq_factor, high_freq_factor) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
            if high_freq_factor <= low_freq_factor {
                return Err(format!("{key}.high_freq_factor is not above low_freq_factor"));
            }
            let original_block_size = needed("original_max_position_embeddings")? as usize;
            let factor = needed("factor")?;
            Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_block_size })
        }
        other => return Err(format!("{key}.rope_type is {other:?}; rustyflow computes default, linear and llama3")),
    };
    Ok((number("rope_theta")?, scaling))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(scaling: Value, parameters: Value) -> Result<(f64, Option<RopeScaling>), String> {
        read_rope(Some(7.0), scaling.as_object(), parameters.as_object())
    }

    #[test]
    fn both_ways_of_writing_are_read() {
        let linear = Some(RopeScaling::Linear { factor: 2.0 });
        assert_eq!(read_rope(None, None, None).unwrap(), (1e4, None));
        assert_eq!(read(json!({ "type": "linear", "factor": 2 }), Value::Null).unwrap(), (7.0, linear));
        let newer = json!({ "rope_type": "linear", "factor": 2, "rope_theta": 9, "partial_rotary_factor": 1.0 });
        assert_eq!(read(Value::Null, newer.clone()).unwrap(), (9.0, linear));
        assert_eq!(read(json!({ "rope_type": "linear", "factor": 2 }), newer).unwrap(), (9.0, linear));
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (scaling, parameters, told) in [
            (json!({ "type": "dynamic", "factor": 2 }), Value::Null, r#"rope_scaling.rope_type is "dynamic""#),
            (Value::Null, json!({ "rope_type": "yarn" }), r#"rope_parameters.rope_type is "yarn""#),
            (Value::Null, json!({ "rope_type": 3 }), "rope_parameters.rope_type is 3"),
            (Value::Null, json!({ "rope_theta": "1e4" }), r#"rope_parameters.rope_theta is "1e4", no number above 0"#),
            (Value::Null, json!({ "rope_theta": 0 }), "rope_parameters.rope_theta is 0, no number above 0"),
            (Value::Null, json!({ "partial_rotary_factor": 0.5 }), "rope_parameters.partial_rotary_factor is 0.5"),
            (Value::Null, json!({ "full_attention": { "rope_theta": 1 } }), "rope_parameters.full_attention is {"),
            (json!({ "mrope_section": [1, 2] }), Value::Null, "rope_scaling.mrope_section is [1,2]"),
            (json!({ "type": "linear" }), Value::Null, "rope_scaling.factor is missing"),
            (
                json!({ "type": "linear", "factor": 2 }),
                json!({ "rope_type": "default" }),
                "rope_scaling and rope_parameters describe different positions",
            ),
        ] {
            let error = read(scaling, parameters).unwrap_err();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
    }
}
