//! The combinations of values that a sweep trains with.

use anyhow::{Result, bail};

/// `--set KEY=VALUE` of one run.
pub type Assignments = Vec<String>;

/// A key with the values that it is to have in turn, as written.
#[derive(Debug, PartialEq)]
pub struct Axis {
    pub key: String,
    pub values: Vec<String>,
}

/// Splits what was given with `--set` into what all runs share and what they differ in.
///
/// # Errors
/// If nothing has several values.
pub fn axes(set: &[String]) -> Result<(Assignments, Vec<Axis>)> {
    let (mut shared, mut axes) = (Vec::new(), Vec::<Axis>::new());
    for assignment in set {
        let (key, text) = assignment.split_once('=').unwrap_or((assignment, ""));
        let values = values(text);
        if values.len() < 2 {
            shared.push(assignment.clone());
            continue;
        }
        let key = key.trim().to_string();
        if axes.iter().any(|axis| axis.key == key) {
            bail!("--set {key}: is swept twice; give all its values at once, as {key}={}", values.join(","));
        }
        if key.starts_with("run.dir") || key.starts_with("run.name") || (is_device(&key)) {
            bail!("--set {key}: is the same for all runs of a sweep");
        }
        axes.push(Axis { key, values });
    }
    if axes.is_empty() {
        bail!("a sweep needs a key with several values, as --set train.learning_rate=1e-4,3e-4,1e-3");
    }
    Ok((shared, axes))
}

/// The device is opened once.
fn is_device(key: &str) -> bool {
    key.starts_with("device.") && key != "device.precision"
}

/// The values between the commas that are not in quotes.
fn values(text: &str) -> Vec<String> {
    let (mut values, mut quote) = (vec![String::new()], None);
    for c in text.chars() {
        match (c, quote) {
            (',', None) => values.push(String::new()),
            _ => {
                quote = match quote {
                    Some(open) if open == c => None,
                    None if matches!(c, '"' | '\'') => Some(c),
                    quote => quote,
                };
                values.last_mut().expect("there is one").push(c);
            }
        }
    }
    values.iter().map(|value| value.trim().to_string()).filter(|value| !value.is_empty()).collect()
}

/// Every combination, the last key changing fastest: of each key its value, in the order of `axes`.
pub fn combinations(axes: &[Axis]) -> Vec<Vec<&str>> {
    axes.iter().fold(vec![Vec::new()], |combinations, axis| {
        let with = |values: &Vec<_>, value| [&values[..], &[value]].concat();
        let all = combinations.iter().flat_map(|values| axis.values.iter().map(move |v| with(values, v.as_str())));
        all.collect()
    })
}

/// What a run of these values is called: `learning_rate=3e-4,n_layer=2`, in characters that every file system takes.
pub fn run_name(axes: &[Axis], values: &[&str]) -> String {
    let part = |(axis, value): (&Axis, &&str)| {
        let key = axis.key.rsplit('.').next().unwrap_or_default();
        let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
        format!("{key}={}", value.trim_matches(['"', '\'']).chars().map(plain).collect::<String>())
    };
    axes.iter().zip(values).map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[&str]) -> Result<(Assignments, Vec<Axis>)> {
        axes(&set.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn every_combination_is_named_by_its_values() {
        let (shared, axes) = of(&["train.max_steps=5", "train.learning_rate=1e-4, 3e-4", "model.n_layer=2,4"]).unwrap();
        assert_eq!(shared, ["train.max_steps=5"]);
        let names: Vec<String> = combinations(&axes).iter().map(|values| run_name(&axes, values)).collect();
        let want = ["1e-4,n_layer=2", "1e-4,n_layer=4", "3e-4,n_layer=2", "3e-4,n_layer=4"];
        assert_eq!(names, want.map(|name| format!("learning_rate={name}")));
    }

    #[test]
    fn a_comma_in_quotes_is_part_of_a_value() {
        let (_, axes) = of(&["data.corpus='a,b',c/d"]).unwrap();
        assert_eq!(axes[0].values, ["'a,b'", "c/d"]);
        assert_eq!(run_name(&axes, &["'a,b'"]), "corpus=a-b");
        assert_eq!(run_name(&axes, &["c/d"]), "corpus=c-d");
    }

    #[test]
    fn what_cannot_be_swept_is_refused() {
        for (set, part) in [
            (&["train.max_steps=5"][..], "several values"),
            (&["run.name=a,b"], "the same for all"),
            (&["device.kind=cpu,gpu"], "the same for all"),
            (&["run.seed=1,2", "run.seed=3,4"], "swept twice"),
        ] {
            assert!(of(set).unwrap_err().to_string().contains(part), "{set:?}");
        }
    }
}
