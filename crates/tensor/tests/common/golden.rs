//! Golden files of PyTorch and their comparison. `scripts/make_goldens.py` and its like wrote the files and explain
//! them; its numbers are exact to half a unit in the last place, so the whole difference is ours.
#![allow(dead_code)] // each test file uses a part

use rustyflow_tensor::testing::worst_error;
use rustyflow_tensor::{Device, Tensor};
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What counts as a token id that is ignored, in PyTorch and here.
pub const IGNORED: (i64, u32) = (-100, u32::MAX);

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// `tests/goldens/<stem>.json` and `.safetensors` of the crate under test.
pub struct Golden {
    pub description: Value,
    bytes: Vec<u8>,
}

impl Golden {
    pub fn read(stem: &str) -> Golden {
        let path = |extension| folder().join(format!("{stem}.{extension}"));
        let text = std::fs::read_to_string(path("json")).unwrap();
        Golden { description: serde_json::from_str(&text).unwrap(), bytes: std::fs::read(path("safetensors")).unwrap() }
    }

    /// How much PyTorch itself loses when it computes `what` in float32.
    pub fn float32_error(&self, what: &str) -> f32 {
        self.description["float32_error"][what].as_f64().unwrap_or_else(|| panic!("no float32_error of {what}")) as f32
    }

    pub fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// The values of a float tensor.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let file = self.file();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        bytemuck::pod_collect_to_vec(view.data())
    }

    /// A tensor on a device; int64 becomes u32.
    pub fn tensor(&self, name: &str, device: &Device) -> Tensor {
        let file = self.file();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        if view.dtype() == Dtype::F32 {
            return Tensor::from_f32(&self.values(name), view.shape().to_vec(), device).unwrap();
        }
        assert_eq!(view.dtype(), Dtype::I64, "{name}");
        let wide: Vec<i64> = bytemuck::pod_collect_to_vec(view.data());
        let id = |id: i64| if id == IGNORED.0 { IGNORED.1 } else { u32::try_from(id).unwrap() };
        let ids: Vec<u32> = wide.into_iter().map(id).collect();
        Tensor::from_u32(&ids, view.shape().to_vec(), device).unwrap()
    }
}

/// max|got - want| / max|want|, the measure of the golden files; infinite if a number is not finite. Element by element
/// would punish cancellation.
pub fn scaled_error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "length");
    let largest = want.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let scale = f64::from(if largest > 0.0 { largest } else { 1.0 });
    worst_error(got, want, |_, _| scale) as f32
}

/// Collects comparisons so that one run shows all that differ.
#[derive(Default)]
pub struct Comparison {
    worst: std::collections::BTreeMap<String, (f32, f32)>,
    failures: Vec<String>,
}

impl Comparison {
    /// `group` is what the closing table sums up over.
    pub fn check(&mut self, group: &str, what: &str, got: &[f32], want: &[f32], tolerance: f32) {
        let error = scaled_error(got, want);
        let worst = self.worst.entry(group.to_string()).or_insert((0.0, tolerance));
        worst.0 = worst.0.max(error);
        if error > tolerance {
            self.failures.push(format!("{what}: off by {error:.1e}, may be {tolerance:.1e}"));
        }
    }

    pub fn finish(self, device: &Device) {
        for (group, (error, tolerance)) in &self.worst {
            println!("{device}: {group}: {error:.1e} of {tolerance:.1e}");
        }
        assert!(
            self.failures.is_empty(),
            "{device}: {} differences:\n{}",
            self.failures.len(),
            self.failures.join("\n")
        );
    }
}

/// A number of a description.
pub fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no {name}"))
}
