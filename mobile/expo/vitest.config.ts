import { patientTests } from "../patient_tests.js";

export default patientTests({ expo: new URL("test/fake_expo.ts", import.meta.url).pathname });
