//! `rustyflow.train`: a run, as the command makes it, with a callback for its events.

use crate::convert::as_python;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use rustyflow::config::{Layers, QUICKSTART, Resolved, json_schema, process_environment};
use rustyflow::train::{Event, Opening, Summary, TrainOptions, find_init, newest_unfinished_run, run_config, train};
use rustyflow::{Error, Result, user_cache_folder};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What a run tells Python, and what Python answers: the first exception of the callback, or of a signal such as
/// Ctrl-C, stops the run after the step under way. It is saved and reported as usual, and then the exception is raised.
struct Observer {
    callback: Option<Py<PyAny>>,
    stop: AtomicBool,
    raised: Mutex<Option<PyErr>>,
}

impl Observer {
    fn see(&self, event: &Event) {
        let line = event.json();
        Python::attach(|py| {
            // Python's handlers of signals run here, if this is its main thread.
            let answered = py.check_signals().and_then(|()| match (&self.callback, line) {
                (Some(callback), Some(line)) if !self.stop.load(Ordering::Relaxed) => {
                    callback.bind(py).call1((as_python(py, &line)?,)).map(drop)
                }
                _ => Ok(()),
            });
            if let Err(error) = answered {
                self.stop.store(true, Ordering::Relaxed);
                self.lock().get_or_insert(error);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, text: &str) {
        self.see(&Event::Note(text.to_string()));
    }
}

/// The configuration in force: defaults < file < environment < assignments, as the command's.
fn resolve(file: Option<&Path>, assignments: &[String]) -> Result<Resolved> {
    let sets_init = assignments.iter().any(|assignment| assignment.trim_start().starts_with("model.init="));
    let layers = match file {
        Some(path) => Layers::new().file(path)?,
        // The quickstart has a shape of its own.
        None if sets_init => Layers::new(),
        None => Layers::new().toml_str("the built-in quickstart", QUICKSTART)?,
    };
    let layers = layers.environment(process_environment())?;
    let mut resolved = assignments.iter().try_fold(layers, |layers, assignment| layers.set(assignment))?.build()?;
    find_init(&mut resolved)?;
    if resolved.config.data.corpus == "-" {
        let message = "data.corpus = \"-\" is the command's: give a file, a folder or a name here".to_string();
        return Err(Error::Invalid(message));
    }
    Ok(resolved)
}

/// What a run takes from Python.
struct Request {
    config: Option<PathBuf>,
    assignments: Vec<String>,
    resume: Option<PathBuf>,
    data_dir: PathBuf,
}

fn run(request: &Request, observer: &Observer) -> Result<Summary> {
    let Request { config, assignments, resume, data_dir } = request;
    let resume = match resume {
        Some(word) if word.as_os_str() == "auto" => {
            let runs = resolve(config.as_deref(), assignments)?.config.run.dir;
            Some(newest_unfinished_run(Path::new(&runs))?)
        }
        run => run.clone(),
    };
    // A run goes on with the values that it has.
    let of_run = resume.as_deref().map(run_config).transpose()?;
    let mut resolved = resolve(config.as_deref().or(of_run.as_deref()), assignments)?;
    resolved.warnings.iter().for_each(|warning| observer.note(&format!("warning: {warning}")));
    let kept = of_run.map(|path| Layers::new().file(&path)?.build()).transpose()?;
    let cache = user_cache_folder();
    let opening = Opening { cache: cache.as_deref(), note: &|text| observer.note(text) };
    let devices = opening.open_for_run(&mut resolved, kept.map(|run| run.config.device.matmul_f32), true)?;
    let others = &devices[1..];
    let device_config = resolved.config.device.clone();
    let reopen = || opening.open(&device_config).map_err(|error| Error::DeviceLost(error.to_string()));
    let options = TrainOptions {
        device: devices[0].clone(),
        others,
        launch: None,
        started: Instant::now(),
        // Of several devices the others have lost a part of the gradients: that ends the run.
        reopen: if others.is_empty() { Some(&reopen) } else { None },
        data_dir,
        cache_dir: cache.as_deref(),
        resume: resume.as_deref(),
        stop: &observer.stop,
        training_log: None,
        trace: None,
        on_event: &mut |event| observer.see(event),
    };
    train(&resolved, options)
}

/// Trains and returns what the run came to. See `rustyflow.train`.
#[pyfunction]
#[pyo3(signature = (config, assignments, resume, data_dir, callback))]
fn _train<'py>(
    py: Python<'py>,
    config: Option<PathBuf>,
    assignments: Vec<String>,
    resume: Option<PathBuf>,
    data_dir: PathBuf,
    callback: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let observer = Observer { callback, stop: AtomicBool::new(false), raised: Mutex::new(None) };
    let request = Request { config, assignments, resume, data_dir };
    let result = py.detach(|| run(&request, &observer));
    if let Some(raised) = observer.lock().take() {
        return Err(raised);
    }
    as_python(py, &Event::Finished(Box::new(result.or_raise()?)).json())
}

/// The names of all keys of a configuration, such as "train.max_steps".
#[pyfunction]
fn _config_keys() -> Vec<String> {
    let schema = json_schema();
    let sections = schema["properties"].as_object().into_iter().flatten();
    let keys = sections.flat_map(|(section, its)| {
        let keys = its["properties"].as_object().into_iter().flatten();
        keys.map(move |(key, _)| format!("{section}.{key}"))
    });
    keys.collect()
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_train, m)?)?;
    m.add_function(wrap_pyfunction!(_config_keys, m)?)
}
