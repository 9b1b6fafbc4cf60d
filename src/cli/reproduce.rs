//! `rustyflow reproduce`: reruns a recipe and compares the results with those that it states.

use super::interrupt::{Interrupted, Interrupts};
use super::train::{Context, show_json, show_progress, train_and_show};
use super::{complete, configuration, device, examples, output};
use crate::config::{Layers, RECIPES, Recipe, Resolved};
use crate::train::Summary;
use crate::units;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = examples::REPRODUCE)]
pub struct Args {
    /// The name of a recipe that ships, or a configuration file with a table [recipe]
    #[arg(value_name = "RECIPE", required_unless_present = "list", add = complete::recipes())]
    recipe: Option<String>,
    /// List the recipes that ship
    #[arg(long, conflicts_with = "recipe")]
    list: bool,
    /// The folder of downloaded data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object per event instead; the first is the recipe
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: &Args, interrupts: &Interrupts) -> Result<()> {
    let Some(name) = args.recipe.as_deref().filter(|_| !args.list) else { return list(args.json) };
    let started = Instant::now();
    let (recipe, layers) = read(name)?;
    let mut resolved = configuration::with_device(layers, &args.device)?.build()?;
    let devices = device::open_for_run(&mut resolved, None, true)?;
    let show = if args.json { show_json() } else { show_progress(false, None) };
    let context = Context {
        devices: &devices,
        data_dir: &args.data_dir,
        started,
        resume: None,
        interrupts,
        launch: None,
        trace: None,
    };
    let (summary, shown) = train_and_show(&resolved, &context, show)?;
    if summary.interrupted {
        return Err(Interrupted.into());
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    if shown.is_ok() {
        report(name, &recipe, &resolved, &summary, minutes, args.json)?;
    }
    match summary.best_loss {
        Some(loss) if recipe.is_met_by(loss) => Ok(()),
        Some(loss) => bail!(
            "{name} is not reproduced: the best validation loss is {loss:.4}, expected {:.4} within {}; the run is in \
             {}",
            recipe.validation_loss,
            recipe.tolerance,
            summary.folder.display()
        ),
        None => bail!("{name} has no text to validate on, so no loss can be compared"),
    }
}

/// The recipe, and its configuration: of a file of that name, or else of one that ships.
fn read(name: &str) -> Result<(Recipe, Layers)> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok((Recipe::of_file(path)?, Layers::new().file(path)?));
    }
    let Some((_, text)) = RECIPES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
        bail!("{name} is neither a file nor a built-in recipe; the recipes are {}", names.join(", "))
    };
    Ok((Recipe::of_text(name, text)?, Layers::new().toml_str(name, text)?))
}

fn list(json: bool) -> Result<()> {
    for (name, text) in RECIPES {
        let recipe = Recipe::of_text(name, text)?;
        if json {
            output::line(json!({ "name": name, "recipe": recipe }))?;
            continue;
        }
        let (loss, tolerance) = (recipe.validation_loss, recipe.tolerance);
        output::line(format_args!("{name:<22} {}", recipe.about))?;
        output::line(format_args!("{:22} validation loss {loss} within {tolerance}{}", "", times(&recipe)))?;
    }
    Ok(())
}

/// "; 1.2 minutes on two CPU cores".
fn times(recipe: &Recipe) -> String {
    recipe.expected.iter().map(|time| format!("; {} minutes on {}", time.minutes, time.device)).collect()
}

fn report(name: &str, recipe: &Recipe, resolved: &Resolved, summary: &Summary, minutes: f64, json: bool) -> Result<()> {
    let loss = summary.best_loss;
    let reproduced = loss.is_some_and(|loss| recipe.is_met_by(loss));
    if json {
        return Ok(output::line(json!({
            "kind": "reproduced", "name": name, "recipe": recipe, "validation_loss": loss, "minutes": minutes,
            "device": summary.device, "precision": resolved.config.device.precision, "reproduced": reproduced,
        }))?);
    }
    let loss = loss.map_or("none".into(), |loss| format!("{loss:.4}"));
    let (stated, tolerance) = (recipe.validation_loss, recipe.tolerance);
    output::line(format_args!("\nrecipe        {name}: {}", recipe.about))?;
    output::line(format_args!("stated        validation loss {stated:.4} within {tolerance}"))?;
    output::line(format_args!("here          validation loss {loss} at best"))?;
    output::line(format_args!(
        "time          {} on {}{}",
        units::duration(60.0 * minutes),
        summary.device,
        times(recipe)
    ))?;
    Ok(output::line(format_args!("result        {}", if reproduced { "pass" } else { "FAIL" }))?)
}
