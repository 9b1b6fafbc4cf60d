//! A text that grows by turns, like a conversation: the KV cache is kept between turns.

use super::decode::{Continuation, decode};
use super::{Request, Sampling, check_prompt};
use crate::Result;
use crate::models::{Cache, LanguageModel};
use std::ops::ControlFlow;

/// Tokens that there is room for at first. A cache for the whole context may take gigabytes that few texts need.
const ROOM: usize = 1024;

/// A model, and the cache of one text.
pub struct Session<'a> {
    model: &'a dyn LanguageModel,
    sampling: Sampling,
    /// The number of the next draw.
    number: u32,
    /// The text. The cache has all of its tokens, or all but the last, and a capacity of `room` tokens.
    ids: Vec<u32>,
    cache: Cache,
    room: usize,
}

impl<'a> Session<'a> {
    /// An empty session. All turns share one random stream.
    ///
    /// # Errors
    /// If a value of `sampling` is out of range, or the device runs out of memory.
    pub fn new(model: &'a dyn LanguageModel, sampling: &Sampling) -> Result<Session<'a>> {
        let room = ROOM.min(model.config().context());
        let cache = model.cache(1, room)?;
        sampling.check()?;
        Ok(Session { model, sampling: sampling.clone(), number: 0, ids: vec![], cache, room })
    }

    /// Sets the text to `prompt` and generates up to `max_new_tokens` tokens, or until the context is full; passes each
    /// to `on_token` as soon as it arrives. Returns the number of computed prompt tokens: those after the common prefix
    /// with the previous text, or all if the cache had to grow.
    ///
    /// # Errors
    /// If the prompt is empty, longer than the context, or has an id outside the vocabulary; or the device reported an
    /// error.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        max_new_tokens: usize,
        on_token: &mut dyn FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<usize> {
        check_prompt(self.model.config(), prompt)?;
        let context = self.model.config().context();
        let max_new_tokens = max_new_tokens.min(context - prompt.len());
        self.make_room(prompt.len() + max_new_tokens)?;
        let shared = self.ids.iter().zip(prompt).take_while(|(old, new)| old == new).count();
        // The last token is computed in any case: the first that is drawn follows from it.
        self.cache.truncate(shared.min(prompt.len() - 1))?;
        let computed = prompt.len() - self.cache.tokens();
        self.ids = prompt.to_vec();
        let mut text = Continuation::new(prompt);
        let (texts, request) = (std::slice::from_mut(&mut text), Request { prompt, sampling: &self.sampling });
        let on_token = &mut |_, id| on_token(id);
        let max = max_new_tokens;
        self.number = decode(self.model, texts, &[request], &mut self.cache, max, self.number, on_token)?;
        self.ids = text.ids;
        Ok(computed)
    }

    /// Grows the cache to `tokens`, at least doubling it so that it grows rarely.
    fn make_room(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.room {
            let room = tokens.max(2 * self.room).min(self.model.config().context());
            self.cache = self.model.cache(1, room)?;
            self.room = room;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::generate::generate;
    use crate::models::{build, testing};

    fn keep(text: &mut Vec<u32>) -> impl FnMut(u32) -> Result<ControlFlow<()>> {
        |id| {
            text.push(id);
            Ok(ControlFlow::Continue(()))
        }
    }

    #[test]
    fn a_turn_is_what_the_whole_text_would_be_continued_by_and_computes_what_is_new() {
        let mut windowed = testing::small_llama("llama");
        windowed.llama.as_mut().unwrap().sliding_window = Some(5);
        for device in Device::for_tests() {
            for config in [testing::small(50, 12, 2, 24), testing::small_llama("qwen3"), windowed.clone()] {
                let mut model = build(&config, 3).unwrap();
                model.to_device(&device).unwrap();
                let sampling = Sampling::greedy(50);
                let mut session = Session::new(&*model, &sampling).unwrap();
                let mut turn = |prompt: &[u32], count: usize| {
                    let (mut got, mut expected) = (vec![], vec![]);
                    let computed = session.generate(prompt, count, &mut keep(&mut got)).unwrap();
                    let room = count.min(12 - prompt.len());
                    generate(&*model, prompt, room, &sampling, &mut keep(&mut expected)).unwrap();
                    assert_eq!(got, expected, "{device}, {config:?}: {prompt:?}");
                    (computed, got)
                };
                let (computed, answer) = turn(&[7, 11, 7], 2);
                assert_eq!((computed, answer.len()), (3, 2));
                // Of the answer the last token was drawn and not computed.
                let further = [&[7, 11, 7], &answer[..], &[4]].concat();
                assert_eq!(turn(&further, 1).0, 2);
                // As it is; another end; another beginning; and no more than the context holds.
                assert_eq!(turn(&further, 3).0, 1);
                assert_eq!(turn(&[&further[..4], &[9, 9]].concat(), 1).0, 2);
                let (computed, answer) = turn(&[5; 10], 9);
                assert_eq!((computed, answer.len()), (10, 2));
            }
        }
    }

    #[test]
    fn a_cache_that_has_grown_holds_nothing_of_before() {
        let model = build(&testing::small(50, ROOM * 3, 2, 24), 3).unwrap();
        let sampling = Sampling::greedy(50);
        let mut session = Session::new(&*model, &sampling).unwrap();
        let prompt = vec![3; ROOM - 2];
        assert_eq!(session.generate(&prompt, 2, &mut keep(&mut vec![])).unwrap(), prompt.len());
        let (mut got, mut expected) = (vec![], vec![]);
        assert_eq!(session.generate(&prompt, 3, &mut keep(&mut got)).unwrap(), prompt.len());
        assert_eq!(session.room, 2 * ROOM);
        generate(&*model, &prompt, 3, &sampling, &mut keep(&mut expected)).unwrap();
        assert_eq!(got, expected);
        assert_eq!(session.generate(&prompt, 3, &mut keep(&mut vec![])).unwrap(), 1);
    }

    /// A GPU has computed further than the host has seen by then, the CPU has not.
    #[test]
    fn a_turn_that_is_broken_off_leaves_nothing_behind() {
        let sampling =
            Sampling { temperature: 1.0, repetition_penalty: 1.3, top_k: 20, seed: 3, ..Sampling::greedy(50) };
        let turns = Device::for_tests().into_iter().map(|device| {
            let mut model = build(&testing::small_llama("qwen3"), 3).unwrap();
            model.to_device(&device).unwrap();
            let mut session = Session::new(&*model, &sampling).unwrap();
            let mut text = vec![7, 11];
            for end in [4, 5, 9] {
                let prompt = text.clone();
                session
                    .generate(&prompt, 10, &mut |id| {
                        text.push(id);
                        Ok(if text.len() == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                    })
                    .unwrap();
                assert_eq!(session.ids, text, "{device}");
            }
            text
        });
        let turns: Vec<_> = turns.collect();
        assert!(turns.iter().all(|text| *text == turns[0] && text.len() == 9), "{turns:?}");
    }

    #[test]
    fn turns_draw_further_numbers() {
        let model = build(&testing::small(50, 12, 2, 24), 3).unwrap();
        let sampling = Sampling { temperature: 5.0, seed: 1, ..Sampling::greedy(50) };
        let mut session = Session::new(&*model, &sampling).unwrap();
        let mut turn = || {
            let mut answer = vec![];
            session.generate(&[1, 2], 8, &mut keep(&mut answer)).unwrap();
            answer
        };
        assert_ne!(turn(), turn());
    }
}
