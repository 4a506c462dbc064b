"""Names of the baselines of :mod:`attendrop.studies.baselines`, from the cheapest on."""

MAJORITY = "majority"
TFIDF = "tfidf"
FROZEN = "frozen"
SETFIT = "setfit"
BASELINES = (MAJORITY, TFIDF, FROZEN, SETFIT)
# Those that cost little beside a fine-tuning.
CHEAP = (MAJORITY, TFIDF, FROZEN)
DESCRIPTIONS = {
    MAJORITY: "the same answer always",
    TFIDF: "a linear model on TF-IDF",
    FROZEN: "a linear model on the frozen encoder",
    SETFIT: "a linear model on an encoder that was trained on pairs",
}
