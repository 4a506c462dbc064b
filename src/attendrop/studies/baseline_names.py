"""Names of the baselines of :mod:`attendrop.studies.baselines`, from the cheapest on."""

MAJORITY = "majority"
TFIDF = "tfidf"
FROZEN = "frozen"
BASELINES = (MAJORITY, TFIDF, FROZEN)
DESCRIPTIONS = {
    MAJORITY: "the same answer always",
    TFIDF: "a linear model on TF-IDF",
    FROZEN: "a linear model on the frozen encoder",
}
