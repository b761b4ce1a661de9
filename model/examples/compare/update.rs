//! One application of the optimizer.

use std::time::Instant;

use envace_model::{AdamW, PolicyLogprobs, TrainSequence, Trainer, TrainerOptions, micro_batches};
use serde::Deserialize;
use serde_json::json;

use crate::{Arguments, Measured};

#[derive(Deserialize)]
struct UpdateSpec {
    sequences: Vec<SequenceSpec>,
    micro_batch_tokens: usize,
    learning_rate: f64,
    recompute: bool,
    /// Gradients and moments in a file beside the specification, not in memory.
    #[serde(default)]
    on_disk: bool,
}

#[derive(Deserialize)]
struct SequenceSpec {
    token_ids: Vec<u32>,
    /// Trained positions, or else all positions of `spans`.
    trained: Option<Vec<u32>>,
    /// Start and length of each generation.
    #[serde(default)]
    spans: Vec<(u32, u32)>,
}

impl SequenceSpec {
    fn sequence(&self) -> TrainSequence {
        let of_spans = || self.spans.iter().flat_map(|(start, length)| *start..start + length).collect();
        let trained = self.trained.clone().unwrap_or_else(of_spans);
        TrainSequence { token_ids: self.token_ids.clone(), trained, temperature: 1.0 }
    }
}

/// Applies the optimizer twice and measures the second time.
pub(super) fn update(arguments: &Arguments) -> Measured {
    let spec: UpdateSpec = arguments.spec();
    let sequences: Vec<TrainSequence> = spec.sequences.iter().map(SequenceSpec::sequence).collect();
    let n_trained: usize = sequences.iter().map(|sequence| sequence.trained.len()).sum();
    let n_tokens: usize = sequences.iter().map(|sequence| sequence.token_ids.len()).sum();
    let adamw = AdamW { weight_decay: 0.01, ..AdamW::default() };
    let folder = arguments.spec.as_ref().and_then(|spec| spec.parent());
    let options = TrainerOptions {
        recompute_layers: spec.recompute,
        scratch: folder.filter(|_| spec.on_disk).map(Into::into),
        adamw,
        ..TrainerOptions::default()
    };
    let mut trainer = Trainer::load(&arguments.model, None, options).unwrap();
    let mut out = Measured::new(0.0, n_tokens);
    for round in 0..if arguments.is_once { 1 } else { 2 } {
        let mut loss = 0.0;
        let start = Instant::now();
        for batch in micro_batches(&sequences, spec.micro_batch_tokens) {
            let batch: Vec<TrainSequence> =
                batch.iter().map(|member| sequences[member.index].clone()).collect();
            let weigh = &mut |rows: &[PolicyLogprobs]| {
                let sums = rows.iter().flat_map(|row| &row.logprobs).map(|logprob| f64::from(*logprob));
                loss -= sums.sum::<f64>() / n_trained as f64;
                rows.iter().map(|row| vec![-1.0 / n_trained as f32; row.logprobs.len()]).collect()
            };
            trainer.accumulate(&batch, weigh).unwrap();
        }
        let report = trainer.apply(spec.learning_rate, Some(1.0)).unwrap();
        out.seconds = start.elapsed().as_secs_f64();
        if round == 0 {
            out.more.push(("loss", json!(loss)));
            out.more.push(("gradient_norm", json!(report.gradient_norm)));
        }
    }
    out
}
