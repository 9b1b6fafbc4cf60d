//! `rustyflow.load`: a trained model that generates, is evaluated, and gives its logits.

use crate::convert::{as_python, of_array};
use crate::device::open;
use crate::errors::OrRaise;
use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustyflow::config::{DataConfig, GenerateConfig, WeightDtype};
use rustyflow::data::{Split, Tokenizer, encode_split};
use rustyflow::generate::{Sampling, TextWriter, generate};
use rustyflow::models::LanguageModel;
use rustyflow::tensor::no_grad;
use rustyflow::train::{Prompt, Windows, corpus_for_model, evaluate, find_model, generates_with, load_model};
use rustyflow::{DType, Device, Error};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What makes ids of text, and text of ids.
#[pyclass(frozen, name = "Tokenizer", module = "rustyflow")]
pub struct PyTokenizer(Arc<Tokenizer>);

#[pymethods]
impl PyTokenizer {
    /// How many ids there are.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    /// The ids of a text.
    fn encode(&self, py: Python, text: &str) -> PyResult<Vec<u32>> {
        py.detach(|| self.0.encode(text)).or_raise()
    }

    /// The text of ids.
    fn decode(&self, py: Python, ids: Vec<u32>) -> PyResult<String> {
        py.detach(|| self.0.decode(&ids)).or_raise()
    }

    fn __repr__(&self) -> String {
        format!("Tokenizer({:?}, {} ids)", self.0.name(), self.0.vocab_size())
    }
}

/// A trained language model and its tokenizer on a device.
#[pyclass(frozen, name = "_Model", module = "rustyflow._rustyflow", subclass)]
pub struct PyModel {
    model: Box<dyn LanguageModel>,
    tokenizer: Arc<Tokenizer>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    folder: PathBuf,
    device: Device,
}

#[pymethods]
impl PyModel {
    /// The model in a run's folder, a checkpoint's, one of Hugging Face, or fetched by its name.
    #[new]
    fn new(py: Python, path: PathBuf, device: &str, dtype: &str) -> PyResult<PyModel> {
        let dtype: WeightDtype = dtype.parse().map_err(|_| {
            PyValueError::new_err(format!("dtype is one of {}, not {dtype:?}", WeightDtype::CHOICES.join(", ")))
        })?;
        let mut notes = Vec::new();
        let loaded = py.detach(|| {
            let told = std::cell::RefCell::new(&mut notes);
            let folder = find_model(&path, &|text| told.borrow_mut().push(text.to_string()))?;
            let device = open(device)?;
            let (model, text) = load_model(dtype, &folder, &device)?;
            let ends = text.ends();
            told.borrow_mut().extend(text.note);
            Ok(PyModel { model, tokenizer: Arc::new(text.tokenizer), ends, folder, device })
        });
        for note in notes {
            py.import("warnings")?.call_method1("warn", (note,))?;
        }
        loaded.or_raise()
    }

    /// The folder of the checkpoint.
    #[getter]
    fn folder(&self) -> &Path {
        &self.folder
    }

    /// "cpu" or "gpu:0".
    #[getter]
    fn device(&self) -> String {
        self.device.to_string()
    }

    /// The shape of the model, as a dict.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_python(py, self.model.config())
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer(self.tokenizer.clone())
    }

    /// The logits of the token after each of `ids`, a tensor, an array or a list: (T) to (T, V), (B, T) to (B, T, V).
    fn logits(&self, py: Python, ids: &Bound<PyAny>) -> PyResult<PyTensor> {
        let ids = match ids.cast::<PyTensor>() {
            Ok(ids) => ids.get().get(),
            Err(_) => of_array(ids, Some(DType::U32), &self.device)?,
        };
        let vocab = self.model.config().vocab_size;
        compute(py, || {
            let ids = ids.to_device(&self.device)?;
            if ids.shape().len() > 2 || ids.is_empty() {
                let (expected, got) = ("ids (T) or (B, T)".to_string(), ids.shape().to_string());
                return Err(Error::Shape { op: "logits", expected, got });
            }
            if let Some(id) = ids.to_u32()?.into_iter().find(|id| *id as usize >= vocab) {
                return Err(Error::Invalid(format!("id {id} is beyond the model's vocabulary of {vocab}")));
            }
            let tokens = ids.shape().last_dim();
            let rows = no_grad(|| self.model.logits(&ids.reshape([ids.shape().rows(), tokens])?))?;
            rows.reshape([&ids.shape()[..], &[self.model.config().vocab_size]].concat())
        })
    }

    /// Continues a prompt: the text, or with `echo` the prompt too. `on_text` gets each piece as it comes, and ends the
    /// text by returning True.
    fn _generate(
        &self,
        py: Python,
        prompt: &str,
        settings: &Bound<PyDict>,
        echo: bool,
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let defaults = py.detach(|| generates_with(&self.folder)).or_raise()?.unwrap_or_default();
        let settings = over(settings, defaults)?;
        let mut raised = None;
        let mut show = |piece: &str, whole: &mut String| -> bool {
            whole.push_str(piece);
            let told = Python::attach(|py| {
                py.check_signals()?;
                match &on_text {
                    Some(on_text) if !piece.is_empty() => on_text.bind(py).call1((piece,))?.is_truthy(),
                    _ => Ok(false),
                }
            });
            told.unwrap_or_else(|error| {
                raised.get_or_insert(error);
                true
            })
        };
        let written = py.detach(|| {
            let sampling = Sampling::of(&settings, self.tokenizer.vocab_size());
            sampling.check()?;
            let prompt = Prompt::new(prompt, &self.tokenizer, self.model.config())?;
            let writer = TextWriter::new(&self.tokenizer, &settings.stop).until(&self.ends);
            let (mut writer, mut whole) = (writer.without_special_tokens(), String::new());
            let mut ends = false;
            for id in prompt.shown() {
                let piece = writer.push_prompt(*id)?;
                ends |= echo && show(&piece, &mut whole);
            }
            if !ends {
                generate(&*self.model, &prompt.ids, settings.max_new_tokens, &sampling, &mut |id| {
                    ends |= show(&writer.push(id)?, &mut whole) || writer.end().is_some();
                    Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })?;
            }
            show(&writer.finish()?, &mut whole);
            Ok(whole)
        });
        match raised {
            Some(error) => Err(error),
            None => written.or_raise(),
        }
    }

    /// How well it predicts the text in a file or a folder.
    fn _evaluate<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        context: Option<usize>,
        stride: Option<usize>,
        batch_size: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let block_size = self.model.config().block_size;
        let context = context.unwrap_or(block_size);
        let stride = stride.unwrap_or(context);
        if context == 0 || context > block_size || stride == 0 || stride > context || batch_size == 0 {
            let message = format!(
                "eval: a context of 1 to {block_size}, a stride of 1 to the context, and batches of at least one; got \
                 {context}, {stride} and {batch_size}"
            );
            return Err(PyValueError::new_err(message));
        }
        let windows = Windows { context, stride, batch_size, max_batches: 0 };
        let never = AtomicBool::new(false);
        let result = py.detach(|| {
            let data = DataConfig { corpus: path.to_string(), ..DataConfig::default() };
            let corpus = corpus_for_model(&data, 0.0, Path::new("data"), None, &self.folder)?;
            let (tokens, coverage) = encode_split(&corpus, Split::Train, &self.tokenizer, None)?;
            evaluate(&*self.model, &tokens, &coverage, windows, &never)
        });
        as_python(py, &result.or_raise()?)
    }

    fn __repr__(&self) -> String {
        let config = self.model.config();
        format!("Model({:?}, {}, on {})", self.folder.display().to_string(), config.kind.as_str(), self.device)
    }
}

/// Python's settings over those of the run.
fn over(given: &Bound<PyDict>, mut settings: GenerateConfig) -> PyResult<GenerateConfig> {
    for (name, value) in given {
        if value.is_none() {
            continue;
        }
        match name.extract::<String>()?.as_str() {
            "max_new_tokens" => settings.max_new_tokens = value.extract()?,
            "temperature" => settings.temperature = value.extract()?,
            "top_k" => settings.top_k = value.extract()?,
            "top_p" => settings.top_p = value.extract()?,
            "min_p" => settings.min_p = value.extract()?,
            "repetition_penalty" => settings.repetition_penalty = value.extract()?,
            "stop" => settings.stop = value.extract()?,
            "seed" => settings.seed = value.extract()?,
            other => return Err(PyValueError::new_err(format!("generate: {other} is no setting"))),
        }
    }
    Ok(settings)
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_class::<PyModel>()?;
    m.add_class::<PyTokenizer>()
}
