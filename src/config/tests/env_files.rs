//! The flat `NAME=value` format.

use super::*;

#[test]
fn the_short_names_set_their_keys() {
    let text = "DATASET=wikitext-2\nSEQ_LEN=64\nNUM_EPOCHS=5\nBATCH_SIZE=32\nLEARNING_RATE=0.002\nEMBED_DIM=64\n\
                NUM_HEADS=2\nNUM_LAYERS=3\nMODEL_PATH=out/models/first\nTEMPERATURE=0.7\nTOP_P=0.9\n";
    let Config { run, data, model, train, generate, .. } = load_env(text).unwrap().config;
    assert_eq!((run.dir.as_str(), run.name.as_str()), ("out/models", "first"));
    assert_eq!((data.corpus.as_str(), model.block_size, train.epochs), ("wikitext-2", 64, Some(5.0)));
    assert_eq!((train.batch_size, train.learning_rate), (32, 0.002));
    assert_eq!((model.n_embd, model.n_head, model.n_layer), (64, 2, 3));
    assert_eq!((generate.temperature, generate.top_p), (0.7, 0.9));
}

#[test]
fn a_model_path_without_a_folder_lies_in_the_working_folder() {
    let run = load_env("MODEL_PATH=first").unwrap().config.run;
    assert_eq!((run.dir.as_str(), run.name.as_str()), (".", "first"));
}

#[test]
fn a_model_path_that_names_no_folder_is_refused() {
    assert_has(&error_of(load_env("MODEL_PATH=..")), &["config.env:1", "MODEL_PATH", "folder"]);
}

#[test]
fn comments_quotes_export_and_the_long_spellings_are_understood() {
    let text = "# comment\r\n\r\n  export BATCH_SIZE = '8' # why\r\nmodel.n_layer=1 # one\nRUSTYFLOW_LOG__EVERY=7\n\
                generate.prompt=\"a # \\\"b\\\"\\n\"\nrun.name=a#b\n";
    let config = load_env(text).unwrap().config;
    assert_eq!((config.train.batch_size, config.model.n_layer, config.log.every), (8, 1, 7));
    assert_eq!(config.generate.prompt, "a # \"b\"\n");
    assert_eq!(config.run.name, "a#b");
}

#[test]
fn values_remember_their_line() {
    let resolved = load_env("\n# x\nBATCH_SIZE=8\n").unwrap();
    assert!(resolved.origin("train.batch_size").to_string().ends_with("config.env:3"));
}

#[test]
fn an_unknown_name_suggests_the_nearest() {
    assert_has(&error_of(load_env("\nBATCHSIZE=8")), &["config.env:2", "BATCHSIZE", "did you mean `BATCH_SIZE`"]);
    assert_has(&error_of(load_env("learning_rte=8")), &["did you mean `LEARNING_RATE`"]);
    assert_has(&error_of(load_env("DROPOUT=0.1")), &["did you mean `model.dropout`"]);
    assert_has(&error_of(load_env("model.n_layers=1")), &["did you mean `model.n_layer`"]);
    assert_has(&error_of(load_env("RUSTYFLOW_LOG__EVRY=1")), &["did you mean `RUSTYFLOW_LOG__EVERY`"]);
    assert_has(&error_of(load_env("PQXY=1")), &["short names", "DATASET"]);
}

#[test]
fn a_wrong_type_names_the_line() {
    let message = error_of(load_env("BATCH_SIZE=many"));
    assert_has(&message, &["config.env:1", "train.batch_size", "an integer", "\"many\""]);
}

#[test]
fn a_key_set_twice_is_refused() {
    let message = error_of(load_env("BATCH_SIZE=1\ntrain.batch_size=2"));
    assert_has(&message, &["config.env:2", "set twice", "config.env:1"]);
}

#[test]
fn lines_that_are_no_assignment_are_refused() {
    assert_has(&error_of(load_env("hello")), &["config.env:1", "NAME=value"]);
    assert_has(&error_of(load_env("DATASET=\"a")), &["closing quote is missing"]);
    assert_has(&error_of(load_env("DATASET='a' b")), &["after the closing quote"]);
}
