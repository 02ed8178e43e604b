// Written by server_fallback/schema/typescript.py from decide.py of that folder: edit those files.

/** Exactly one of ``choices`` is the answer. */
export interface ChoiceQuestion {
  readonly type: "choice";
  readonly question: string;
  readonly choices: readonly string[];
}

/** The answer is true or false. */
export interface YesNoQuestion {
  readonly type: "yes_no";
  readonly question: string;
}

/** The answer is an integer from ``minimum`` to ``maximum``, or one of the levels of ``scale``, lowest first. */
export interface ScoreQuestion {
  readonly type: "score";
  readonly question: string;
  readonly minimum?: number | null;
  readonly maximum?: number | null;
  readonly scale?: readonly string[] | null;
}

/** Any number of ``labels`` hold, each independently of the others. A label replaces {} of ``question``, or follows it after a colon. */
export interface LabelsQuestion {
  readonly type: "labels";
  readonly question: string;
  readonly labels: readonly string[];
}

/** How the log-probabilities of a question's answers become its probabilities: the softmax of log-probability / ``temperature`` + ``bias``, which has a number for each answer. */
export interface Scaling {
  readonly temperature: number;
  readonly bias: Readonly<Record<string, number>>;
}

/** What `fit_calibration` learned from examples. ``model`` is the ``calibration_model`` of their answers, None for any. ``questions``: the scaling of each question by its name; of labels, by its name, a slash and the label. */
export interface DecisionCalibration {
  readonly version: 1;
  readonly model?: string | null;
  readonly examples?: number | null;
  readonly questions: Record<string, Scaling>;
}

/** ``answer`` is the likeliest choice, true or false, the likeliest score (an integer or a level), or the labels that hold; null if its confidence is below the bound. ``confidence`` is the answer's probability; of labels, that of the least certain one. ``probabilities`` has each answer's ("Yes" and "No"; of a label, the probability that it holds). ``expectation`` is the mean score, whose levels count from 0. ``unsure`` are labels that are below the bound. ``mass`` is the probability, before calibration, that the model would write one of the answers; of labels, the least. ``logprobs`` are those of the answers (of each label: Yes and No), from which `fit_calibration` learns. */
export interface DecidedAnswer {
  readonly type: "choice" | "yes_no" | "score" | "labels";
  readonly answer: string | boolean | number | readonly string[] | null;
  readonly confidence: number;
  readonly probabilities: Readonly<Record<string, number>>;
  readonly expectation?: number;
  readonly unsure?: readonly string[];
  readonly mass: number;
  readonly logprobs: readonly (readonly number[])[];
}
