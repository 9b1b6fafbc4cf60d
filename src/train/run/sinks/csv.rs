//! `metrics.csv`: a row per line of `metrics.jsonl` with numbers, for spreadsheets and data frames. Missing values are
//! empty.

use super::{Record, SCALARS, Sink};
use crate::Result;
use crate::train::checkpoint::CSV;
use crate::train::run::folder::RunFolder;
use serde_json::Value;

pub(super) struct Csv;

impl Csv {
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn open(folder: &mut RunFolder) -> Result<Csv> {
        folder.lines().create(CSV).map(|()| Csv)
    }
}

impl Sink for Csv {
    fn add(&mut self, record: &Record, folder: &mut RunFolder) -> Result<()> {
        // Its lines of later steps are gone already.
        if record.went_back {
            return Ok(());
        }
        folder.lines().add(CSV, Some(&header()), &row(record))
    }
}

fn header() -> String {
    SCALARS.iter().fold("time,step".into(), |text, scalar| text + "," + scalar.column)
}

/// No cell needs quotes: all are numbers, but for the time.
fn row(record: &Record) -> String {
    let mut row = format!("{},{}", record.line["time"].as_str().unwrap_or_default(), record.step);
    for column in &SCALARS {
        row.push(',');
        match record.scalars().find(|(scalar, _)| scalar.tag == column.tag) {
            Some((_, Value::Null)) => row.push_str("nan"),
            Some((_, number)) => row.push_str(&number.to_string()),
            None => {}
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::run::sinks::tests::step_without_loss;

    #[test]
    fn a_row_has_a_cell_for_each_column_and_says_what_is_no_number() {
        let mut record = Record::new(&step_without_loss(3)).unwrap();
        record.line["time"] = "now".into();
        let expected = "time,step,epoch,train_loss,learning_rate,grad_norm,tokens,tokens_per_s,loss_scale,overflows,\
                        validation_loss,perplexity,bits_per_byte,reward_chosen,reward_rejected,reward_accuracy,\
                        reward_margin,validation_reward_chosen,validation_reward_rejected,validation_reward_accuracy,\
                        validation_reward_margin";
        assert_eq!(header(), expected);
        assert_eq!(row(&record), "now,3,0.5,nan,0.1,0.25,4096,1234.5,65536.0,2,,,,0.5,0.25,1.0,0.25,,,,");
    }
}
