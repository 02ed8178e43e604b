import { patientTests } from "../patient_tests.js";

export default patientTests();
