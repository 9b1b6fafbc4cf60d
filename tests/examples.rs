//! The examples that train something do what their first lines say.

#![allow(clippy::duplicate_mod)] // Each example takes along what they share.

#[path = "../crates/tensor/tests/common/mod.rs"]
mod common;

#[path = "../examples/autograd_scalar.rs"]
mod autograd_scalar;
#[path = "../examples/cnn_digits.rs"]
mod cnn_digits;
#[path = "../examples/lstm_text.rs"]
mod lstm_text;
#[path = "../examples/mlp_moons.rs"]
mod mlp_moons;
#[path = "../examples/two_devices.rs"]
mod two_devices;

use rustyflow::Device;
use std::path::Path;

/// The text of a picture, which is XML with so many of an element at least.
fn picture(folder: &Path, name: &str, element: &str, count: usize) -> String {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n") && !text.contains("NaN"), "{name}");
    let there = text.matches(element).count();
    assert!(there >= count, "{name} has {there} of {element}");
    text
}

#[test]
fn the_network_tells_all_points_of_the_moons_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(mlp_moons::run(dir.path(), 100, &Device::Cpu).unwrap(), 1.0);
    let text = picture(dir.path(), "mlp_moons.svg", "<circle", 100);
    // The plane has both colours of the points.
    assert!(text.matches("fill=\"#0072b2\"").count() >= 50 && text.matches("fill=\"#e69f00\"").count() >= 50);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_convolutional_network_reads_digits() {
    let dir = tempfile::tempdir().unwrap();
    let accuracy = cnn_digits::run(dir.path(), 15, &Device::Cpu).unwrap();
    assert!(accuracy >= 0.98, "{accuracy}");
    // The matrix, and 35 digits of 64 pixels.
    picture(dir.path(), "cnn_digits.svg", "<rect", 100 + 35 * 64);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_lstm_expects_more_and_more_of_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let [early, late] = [3, 60].map(|steps| lstm_text::run(dir.path(), steps, &Device::Cpu).unwrap());
    // The letters alone, without what stands before them, cost 4.4 bits.
    assert!(late < 4.0 && late < early - 0.5, "{early} and {late}");
    picture(dir.path(), "lstm_text.svg", "<rect", 1000);
}

/// The numbers of micrograd's page.
#[test]
fn the_gradients_of_the_expression_are_those_of_micrograd() {
    let dir = tempfile::tempdir().unwrap();
    let got = autograd_scalar::run(dir.path()).unwrap();
    for (got, want) in got.into_iter().zip([24.7041, 138.8338, 645.5773]) {
        // Seven digits of f32, of which the page gives as many.
        assert!((got - want).abs() <= 1e-4 * want, "{got}, not {want}");
    }
    let text = picture(dir.path(), "autograd_scalar.svg", "<polyline", 35);
    assert!(["24.7041", "grad 138.8338", "grad 645.577"].iter().all(|number| text.contains(number)));
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_model_on_two_devices_learns_as_one_on_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let Some(gpu) = common::gpu() else { return };
    for devices in [[&gpu, &Device::Cpu], [&Device::Cpu, &gpu]] {
        let [loss, difference] = two_devices::run(dir.path(), 150, devices).unwrap();
        // A curve through the mean alone has a loss of about 0.5.
        assert!(loss < 0.15, "{loss}");
        // Sums in another order, and Adam's division by small numbers, over 150 steps: 3e-7 after 60.
        assert!(difference < 1e-5, "{difference}");
        picture(dir.path(), "two_devices.svg", "<polyline", 4);
    }
}
