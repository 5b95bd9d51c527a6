use super::*;

fn weights_after(which: Loop, num_steps: usize) -> Vec<f32> {
    which
        .train(Size::Small, feed::Source::new(Size::Small, num_steps, |_| ()))
        .unwrap()
        .weights()
}

/// Times are comparable only if the loops do the same work.
#[test]
fn all_loops_train_to_the_same_bits() {
    let raw = weights_after(Loop::Raw, 7);
    assert_eq!(raw.len(), 64 * 128 + 128 + 128 * 10 + 10);
    assert_ne!(raw, weights_after(Loop::Raw, 6));
    for which in [Loop::Trainer, Loop::BurnTrain] {
        assert!(weights_after(which, 7) == raw, "{which:?}");
    }
    let raw_sgd = weights_after(Loop::RawSgd, 7);
    assert_ne!(raw_sgd, raw);
    assert!(weights_after(Loop::TrainerSgd, 7) == raw_sgd);
}
