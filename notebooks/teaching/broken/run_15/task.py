"""Short reviews: positive or negative? Made of subjects and phrases."""

import workbench as wb

SUBJECTS = ["soup", "hotel", "film", "jacket", "phone", "haircut", "novel", "museum"]
PHRASES = {
    "positive": ["I loved the {}.", "The {} was wonderful.", "Best {} in years, truly."],
    "negative": ["I hated the {}.", "The {} was awful.", "Worst {} in years, truly."],
}
ASKED = "Is this review positive or negative? Answer with one word.\n\nReview: {}"


def reviews(subjects):
    return [
        {
            "prompt": [{"role": "user", "content": ASKED.format(phrase.format(subject))}],
            "answer": answer,
        }
        for subject in subjects
        for answer, phrases in PHRASES.items()
        for phrase in phrases
    ]


@wb.rewards.max_score(1.0)
def word_reward(completions, answer, **columns):
    """1.0 for the word that was asked for."""
    return [
        1.0 if completion[0]["content"] == right else 0.0
        for completion, right in zip(completions, answer)
    ]


task = wb.Task(
    "reviews",
    rows=reviews(SUBJECTS),
    held_out=reviews(["taxi", "garden"]),
    reward_funcs=[word_reward],
    right_by="word_reward",
    ideal=lambda row: row["answer"],
)
